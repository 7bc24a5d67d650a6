"""The plug-in in an installed SGLang, in processes of its own: its merge and ours on its coordinator."""

import os

import pytest

from attention.engines.sglang.dcp_hooks import HOOKS
from tests.attention.engines.sources import path
from tests.torch_jobs import ROOT, by_hand


@pytest.mark.long
def test_its_registry_hooks_the_merges():
    path("sglang", "srt.plugins.__init__")  # skips where there is none
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    program = ROOT / "tests/attention/engines/programs/sglang_merges.py"
    jobs = by_hand(2, [program], timeout_s=200, env={"PYTHONPATH": paths, "SGLANG_PLUGINS": "topocomm"})
    assert [out for out, _, _ in jobs] == [f"[{rank}] {list(HOOKS)}\n" for rank in range(2)], jobs[0][1][-3000:]
