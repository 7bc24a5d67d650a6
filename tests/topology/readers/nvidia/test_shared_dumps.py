"""Dumps of real machines with hand-checked facts."""

from tests.topology.dumps import each_of, expected
from topocomm.errors import TopologyError
from topocomm.topology.recognise import load


@each_of("nvidia-smi-topo-m")
def test_facts(path):
    facts = expected(path)
    try:
        topology = load(path)
    except TopologyError:
        assert facts["malformed"]
        return
    assert topology.warnings or not facts["malformed"]
    kinds = [d.kind for d in topology.devices]
    assert (kinds.count("gpu"), kinds.count("nic")) == (facts["gpus"], facts["nics"])
    codes = {frozenset((pair.a, pair.b)): pair.code for pair in topology.pairs}
    told = {**facts["links"], **facts["gpu_nic_links"]}
    assert codes == {frozenset(pair.split("-", 1)): code for pair, code in told.items()}
    for gpu in (f"GPU{i}" for i in range(facts["gpus"])):
        device = topology.by_id[gpu]
        assert device.cpu_affinity == (facts["cpu_affinity"] or {}).get(gpu)
        assert device.numa == (facts["numa_affinity"] or {}).get(gpu)
