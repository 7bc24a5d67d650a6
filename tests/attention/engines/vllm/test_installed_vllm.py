"""The plug-in in an installed vLLM, in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.attention.engines.sources import path
from tests.torch_jobs import ROOT, environment


@pytest.mark.long
def test_its_registry_gives_our_subclasses():
    path("vllm", "plugins.__init__")  # skips where there is none
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    program = ROOT / "tests/attention/engines/programs/vllm_backends.py"
    env = environment(PYTHONPATH=paths, VLLM_PLUGINS="topocomm")
    job = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200, env=env)
    assert job.stdout.splitlines()[-1:] == ["ok"], job.stderr[-3000:]
