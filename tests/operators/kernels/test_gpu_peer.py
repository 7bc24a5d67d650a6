"""The peer kernel compiles for every GPU that is supported, spills nothing, and orders its memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TARGETS = ["sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942"]
MARKS = {"sm_90": pytest.mark.long, "gfx942": pytest.mark.long}
"""The others are compiled by `make soak`."""


def compiled(arch, folder):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.operators.kernels.peer_compiled", arch]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("arch", [pytest.param(name, marks=MARKS.get(name, pytest.mark.soak)) for name in TARGETS])
def test_the_kernel_compiles_spills_nothing_and_orders_its_memory(arch, tmp_path):
    found = compiled(arch, tmp_path)
    assert len(found) == 16
    for case, told in found.items():
        assert told["spills"] == 0, case
        check = nvidia if arch.startswith("sm_") else amd
        check(case, told["text"])


def nvidia(case, text):
    looked = [word for word in text if word != "clock"]
    waits = [at for at in places(looked, "look") if looked[at + 1] != "look"]  # one warp agrees without a barrier
    assert waits and all(looked[at + 1] == "barrier" for at in waits), f"{case}: a flag is seen, and not by all threads"
    first, *others = places(text, "raise")
    for at in (first, *others):
        assert text[at - 1] == "barrier", f"{case}: a flag is raised before all threads have written"
    assert bool(others) == ("allreduce" not in case), case  # what does not synchronise tells what it is through with
    if case.startswith("sum f4, 16384"):
        assert text[first - 2] == "wide store", case
    assert "clock" in text and "arrive" in text


def amd(case, text):
    text = [word for word in text if word != "barrier"]  # of several wavefronts; the caches matter
    for at in places(text, "raise"):
        assert text[at - 1] == "write back", f"{case}: a flag is raised before memory is written"
    assert places(text, "clock") and all(text[at - 1] == "invalidate" for at in places(text, "clock")), case


def places(text, name):
    return [at for at, word in enumerate(text) if word == name]
