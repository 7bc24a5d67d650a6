"""The shared logs, with every field of their facts."""

from tests.topology.dumps import assert_said, each_of, expected
from topocomm.topology.readers.nccl.log import nccl_log

NOT_IN_THE_TEXT = {"library", "rings_note"}
"""A version line that the excerpt leaves out, and a remark of the person who read the dump."""


@each_of("nccl-log")
def test_facts(path):
    facts = expected(path)
    topology = nccl_log.read(path.read_text(), path.name)
    assert bool(topology.warnings) == facts["malformed"]
    gpus = [d for d in topology.devices if d.kind == "gpu"]
    said = {
        **topology.facts,
        "gpus": len(gpus),
        "numa_affinity": {d.id: d.numa for d in gpus},
        "links": {f"{p.a}-{p.b}": p.code for p in topology.pairs if p.b.startswith("GPU")},
    }
    assert_said(said, facts, but={"malformed", *NOT_IN_THE_TEXT})
    assert all(key not in topology.facts for key in NOT_IN_THE_TEXT)
