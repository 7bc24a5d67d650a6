"""The shared logs, with every field of their facts; they lie beside the repository and may be absent."""

import json
from pathlib import Path

import pytest

from topocomm.topology.readers import nccl_log

FOLDER = Path(__file__).parents[4] / "shared/topologies/nccl-log"
DUMPS = sorted(FOLDER.glob("*.txt"))
NOT_IN_THE_TEXT = {"library", "rings_note"}
"""A version line that the excerpt leaves out, and a remark of the person who read the dump."""

pytestmark = pytest.mark.skipif(not DUMPS, reason="no shared dumps beside the repository")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_facts(path):
    expected = json.loads(path.with_suffix(".expect.json").read_text())
    topology = nccl_log.read(path.read_text(), path.name)
    assert bool(topology.warnings) == expected.pop("malformed")
    gpus = [d for d in topology.devices if d.kind == "gpu"]
    said = {
        **topology.facts,
        "gpus": len(gpus),
        "numa_affinity": {d.id: d.numa for d in gpus},
        "links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b.startswith("GPU")},
    }
    for key in expected.keys() - {"kind", "notes"} - NOT_IN_THE_TEXT:
        assert said[key] == expected[key], key
    assert all(key not in topology.facts for key in NOT_IN_THE_TEXT)
