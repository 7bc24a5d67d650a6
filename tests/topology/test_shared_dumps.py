"""Dumps of real machines with hand-checked facts; they lie beside the repository and may be absent."""

import json
from pathlib import Path

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.recognise import load

FOLDER = Path(__file__).parents[3] / "shared/topologies/nvidia-smi-topo-m"
DUMPS = sorted(FOLDER.glob("*.txt"))

pytestmark = pytest.mark.skipif(not DUMPS, reason="no shared dumps beside the repository")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_facts(path):
    facts = json.loads(path.with_suffix(".expect.json").read_text())
    try:
        topology = load(path)
    except TopologyError:
        assert facts["malformed"]
        return
    assert topology.warnings or not facts["malformed"]
    kinds = [d.kind for d in topology.devices]
    assert (kinds.count("gpu"), kinds.count("nic")) == (facts["gpus"], facts["nics"])
    codes = {frozenset((pair.a, pair.b)): pair.code for pair in topology.pairs}
    expected = {**facts["links"], **facts["gpu_nic_links"]}
    assert codes == {frozenset(pair.split("-", 1)): code for pair, code in expected.items()}
    for gpu in (f"GPU{i}" for i in range(facts["gpus"])):
        device = topology.by_id[gpu]
        assert device.cpu_affinity == (facts["cpu_affinity"] or {}).get(gpu)
        assert device.numa == (facts["numa_affinity"] or {}).get(gpu)
