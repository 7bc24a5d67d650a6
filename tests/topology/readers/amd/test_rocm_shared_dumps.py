"""Dumps of real machines with hand-checked facts."""

import pytest

from tests.topology.dumps import assert_said, each_of, expected
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import rocm_smi


@each_of("rocm-smi-showtopo")
def test_facts(path):
    text = path.read_text()
    facts = expected(path)
    assert rocm_smi.matches(text)
    if facts["malformed"]:  # link types under the title of the weights
        with pytest.raises(TopologyError, match="Weight between two GPUs: GPU0-GPU1 is 'XGMI'; that is a cell of"):
            rocm_smi.read(text, path.name)
        return
    topology = rocm_smi.read(text, path.name)
    said = {
        **topology.facts,
        "gpus": sum(d.kind == "gpu" for d in topology.devices),
        "links": {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs} or None,
    }
    assert_said(said, facts, but={"malformed"}, absent=None)
    assert {d.id: d.numa for d in topology.devices if d.kind == "gpu"} == facts["numa_affinity"]
