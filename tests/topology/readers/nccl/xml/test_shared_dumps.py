"""Real NCCL topology files with hand-checked facts."""

from itertools import product

from tests.topology.dumps import assert_said, each_of, expected
from topocomm.errors import TopologyError
from topocomm.topology.readers.nccl.xml import nccl_xml


def from_devices(topology):
    """The facts that follow from devices and pairs, in the shapes of the expected ones."""
    gpus = [d for d in topology.devices if d.kind == "gpu"]
    codes = {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}
    ends = {gpu.id for gpu in gpus}
    return {
        "gpus": len(gpus) or None,
        "busids": {gpu.id: gpu.bus_id for gpu in gpus},
        "numa_affinity": {gpu.id: gpu.numa for gpu in gpus},
        "links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b in ends} or None,
        "gpu_nic_links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b not in ends},
    } | {"codes": codes}


@each_of("nccl-topo-xml")
def test_facts(path):
    text, facts = path.read_text(), expected(path)
    assert nccl_xml.matches(text)
    try:
        topology = nccl_xml.read(text, str(path))
    except TopologyError:
        assert facts["malformed"]
        return
    assert not any(str(path.parent) in warning for warning in topology.warnings)
    found = {**topology.facts, **from_devices(topology)}
    if facts["nics"] is None:
        found["nics"] = found["nics"] or None
    near = facts.get("gpu_nic_links", {})
    if "gpu_nic_links_others" in facts:  # in words: PHB within a NUMA node, SYS across
        for gpu, nic in product((f"GPU{i}" for i in range(8)), facts["net_names"]):
            same = topology.by_id[gpu].numa == topology.by_id[nic].numa
            wanted = near.get(f"{gpu}-{nic}", "PHB" if same else "SYS")
            assert found["codes"][f"{gpu}-{nic}"] == wanted
    assert_said(found, facts, but={"malformed", "gpu_nic_links", "gpu_nic_links_others"})
    assert {pair: found["gpu_nic_links"].get(pair) for pair in near} == near
