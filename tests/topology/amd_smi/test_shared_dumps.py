"""Dumps of real machines with hand-checked facts; they lie beside the repository and may be absent."""

import json
from pathlib import Path

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.readers import amd_smi, amd_smi_json, amd_smi_xgmi

FOLDER = Path(__file__).parents[4] / "shared/topologies"
DUMPS = [
    path
    for kind in ("amd-smi-topology", "amd-smi-xgmi")
    for path in sorted((FOLDER / kind).glob("*"))
    if not path.name.endswith(".expect.json")
]
PROSE = {"kind", "notes", "malformed", "format"}

pytestmark = pytest.mark.skipif(not DUMPS, reason="no shared dumps beside the repository")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.stem)
def test_facts(path):
    text = path.read_text()
    expected = json.loads(path.with_suffix(".expect.json").read_text())
    (reader,) = [reader for reader in (amd_smi, amd_smi_json, amd_smi_xgmi) if reader.matches(text)]
    if expected["malformed"]:
        with pytest.raises(TopologyError, match=r"\.json:14: not JSON at column 13, and lines were left out"):
            reader.read(text, path.name)
        return
    topology = reader.read(text, path.name)
    said = {
        **topology.facts,
        "gpus": sum(d.kind == "gpu" for d in topology.devices),
        "busids": {d.id: d.bus_id for d in topology.devices if d.bus_id} or None,
        "links": {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs} or None,
    }
    for key in expected.keys() - PROSE:
        assert said.get(key) == expected[key], key
