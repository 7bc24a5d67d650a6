"""Attention over torch process groups and meshes."""

from pathlib import Path

import pytest

from tests.torch_jobs import said, torchrun

PROGRAMS = Path(__file__).parent / "torch_programs"


@pytest.mark.long
def test_groups_and_meshes_are_communicators():
    job = torchrun(2, [PROGRAMS / "groups.py"])
    assert said(job.stdout) == {0: "ok", 1: "ok"}, job.stderr[-3000:]
