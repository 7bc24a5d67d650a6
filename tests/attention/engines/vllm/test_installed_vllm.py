"""The plug-in in an installed vLLM, in processes of its own."""

import os

import pytest

from tests.attention.engines.sources import path
from tests.torch_jobs import ROOT, by_hand

PROGRAMS = ROOT / "tests/attention/engines/programs"


def run(ranks, program):
    """What ranks print; skips the test where there is no vLLM."""
    path("vllm", "plugins.__init__")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": paths, "VLLM_PLUGINS": "topocomm", "VLLM_LOGGING_LEVEL": "ERROR"}
    jobs = by_hand(ranks, [PROGRAMS / program], timeout_s=200, env=env)
    return [(out.splitlines()[-1:], err[-3000:]) for out, err, _ in jobs]


@pytest.mark.long
def test_its_registry_gives_our_subclasses():
    ((last, errors),) = run(1, "vllm_backends.py")
    assert last == ["ok"], errors


@pytest.mark.long
def test_its_coordinator_is_a_group():
    for rank, (last, errors) in enumerate(run(2, "vllm_merges.py")):
        assert last == [f"[{rank}] ok"], errors
