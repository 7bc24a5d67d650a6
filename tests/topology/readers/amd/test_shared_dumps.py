"""Dumps of real machines with hand-checked facts."""

import pytest

from tests.topology.dumps import assert_said, each_of, expected
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi


@each_of("amd-smi-topology", "amd-smi-xgmi")
def test_facts(path):
    text = path.read_text()
    facts = expected(path)
    (reader,) = [reader for reader in (amd_smi, amd_smi_json, amd_smi_xgmi) if reader.matches(text)]
    if facts["malformed"]:
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
    assert_said(said, facts, but={"malformed", "format"}, absent=None)
