"""tools/bench/model.py: a row for each way, whose tokens are equal."""

import re
from pathlib import Path

import pytest

from tests.mpi import mpirun

TOOL = Path(__file__).parents[2] / "tools/bench/model.py"
ROW = re.compile(r"^  (.+?) +prompt [\d.]+ s .*, [\d.]+x  token [\d.]+ ms .*, [\d.]+x  tokens equal$", re.MULTILINE)


@pytest.mark.long
def test_every_way_has_a_row(tmp_path):
    pytest.importorskip("transformers")
    from tests.attention.huggingface.tiny_llama import build

    build().save_pretrained(tmp_path)
    done = mpirun(2, [TOOL, f"--model={tmp_path}", "--tokens=40", "--new=5", "--repeats=2"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert ROW.findall(done.stdout) == ["plain transformers", "plain, P threads", "whole weights", "sharded weights"]
    digests = set()
    for way, held in (("plain", 1), ("threads", 1), ("whole", 2), ("sharded", 2)):
        done = mpirun(2, [TOOL, f"--model={tmp_path}", "--tokens=40", "--new=5", f"--only={way}"])
        assert done.returncode == 0, done.stderr[-3000:]
        digests |= {*re.findall(r"prompt [\d.]+ s, token [\d.]+ ms, tokens (\w{12})$", done.stdout, re.MULTILINE)}
        assert len(re.findall(r"^  rank \d: weights 0\.00 GiB, .* GiB resident$", done.stdout, re.MULTILINE)) == held
    assert len(digests) == 1
