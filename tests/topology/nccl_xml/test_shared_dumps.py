"""Real NCCL topology files with hand-checked facts; they lie beside the repository and may be absent."""

import json
from itertools import product
from pathlib import Path

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.readers import nccl_xml

FOLDER = Path(__file__).parents[4] / "shared/topologies/nccl-topo-xml"
DUMPS = sorted(FOLDER.glob("*.xml"))

pytestmark = pytest.mark.skipif(not DUMPS, reason="no shared dumps beside the repository")

NOT_COMPARED = {"notes", "kind", "malformed"}


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


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_facts(path):
    text, expected = path.read_text(), json.loads(path.with_suffix(".expect.json").read_text())
    assert nccl_xml.matches(text)
    try:
        topology = nccl_xml.read(text, str(path))
    except TopologyError:
        assert expected["malformed"]
        return
    assert not any(str(path.parent) in warning for warning in topology.warnings)
    found = {**topology.facts, **from_devices(topology)}
    if expected["nics"] is None:
        found["nics"] = found["nics"] or None
    near = expected.get("gpu_nic_links", {})
    if "gpu_nic_links_others" in expected:  # in words: PHB within a NUMA node, SYS across
        for gpu, nic in product((f"GPU{i}" for i in range(8)), expected["net_names"]):
            same = topology.by_id[gpu].numa == topology.by_id[nic].numa
            wanted = near.get(f"{gpu}-{nic}", "PHB" if same else "SYS")
            assert found["codes"][f"{gpu}-{nic}"] == wanted
    for key in expected.keys() - NOT_COMPARED - {"gpu_nic_links", "gpu_nic_links_others"}:
        assert found.get(key, "absent") == expected[key], key
    assert {pair: found["gpu_nic_links"].get(pair) for pair in near} == near
