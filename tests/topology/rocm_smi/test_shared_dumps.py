"""Dumps of real machines with hand-checked facts; they lie beside the repository and may be absent."""

import json
from pathlib import Path

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.readers import rocm_smi

FOLDER = Path(__file__).parents[4] / "shared/topologies/rocm-smi-showtopo"
DUMPS = sorted(FOLDER.glob("*.txt"))
PROSE = {"kind", "notes", "malformed"}

pytestmark = pytest.mark.skipif(not DUMPS, reason="no shared dumps beside the repository")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_facts(path):
    text = path.read_text()
    expected = json.loads(path.with_suffix(".expect.json").read_text())
    assert rocm_smi.matches(text)
    if expected["malformed"]:  # link types under the title of the weights
        with pytest.raises(TopologyError, match="Weight between two GPUs: GPU0-GPU1 is 'XGMI'; that is a cell of"):
            rocm_smi.read(text, path.name)
        return
    topology = rocm_smi.read(text, path.name)
    said = {
        **topology.facts,
        "gpus": sum(d.kind == "gpu" for d in topology.devices),
        "links": {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs} or None,
    }
    for key in expected.keys() - PROSE:
        assert said.get(key) == expected[key], key
    assert {d.id: d.numa for d in topology.devices if d.kind == "gpu"} == expected["numa_affinity"]
