"""A real language model on real ranks: 64 tokens as single-process transformers makes them, by tree and by ring."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from attention.jobs.generate_job import encode
from attention.jobs.models import find_model, load, load_model
from tests.mpi import mpirun

JOB = Path(__file__).with_name("smollm2_job.py")
PROMPT_FILE = Path(__file__).parents[3] / "docs" / "demo" / "prompt.txt"
PROMPT_LETTERS = 850
NEW_TOKENS = 64
METHODS = ["tree", "ring"]
pytestmark = pytest.mark.alone


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """What transformers makes of the first two hundred tokens of the demo's prompt, computed once."""
    path = find_model("smollm2")
    text = PROMPT_FILE.read_text(encoding="utf-8")[:PROMPT_LETTERS]
    inputs = encode(load("tokenizer", path), text)
    assert 180 <= inputs["input_ids"].shape[1] <= 260
    made = load_model(path).generate(
        **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    tokens = made.sequences[0, inputs["input_ids"].shape[1] :]
    assert len(tokens) == NEW_TOKENS, "the text ends early; take another prompt"
    file = tmp_path_factory.mktemp("smollm2") / "reference.safetensors"
    save_file({**inputs, "tokens": tokens.clone(), "logits": torch.cat(made.logits)}, file)
    return file


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(2, marks=pytest.mark.long),
        *(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (1, 3, 4, 8)),
    ],
)
def test_tokens_and_logits(reference, ranks):
    done = mpirun(ranks, [JOB, reference, *METHODS], timeout_s=280)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["method"] for result in results] == METHODS
    for result in results:
        assert result["same_tokens"] == [NEW_TOKENS] * ranks, result
        assert result["difference"] <= 1e-3, result


def test_the_demo_prompt_is_long_enough():
    inputs = encode(load("tokenizer", find_model("smollm2")), PROMPT_FILE.read_text(encoding="utf-8"))
    assert 2_100 <= inputs["input_ids"].shape[1] < 7_000
