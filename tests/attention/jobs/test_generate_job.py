"""`python -m attention generate`: what goes where, the check, and what is said of bad input."""

import json
import re
import subprocess
import sys

import pytest
import torch

from attention.__main__ import main
from attention.jobs.generate_job import compare
from tests.attention.faults import plant_lse_fault
from tests.mpi import mpirun

PROMPT = "a letter after another, and then some more of them"


def generate(model, *arguments, prompt=PROMPT):
    return ["generate", f"--model={model}", f"--prompt={prompt}", "--max-new-tokens=20", *arguments]


def error_line(capsys):
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.long
def test_under_mpirun(tiny_model):
    done = mpirun(3, ["-m", "attention", *generate(tiny_model, "--verify")])
    assert done.returncode == 0, done.stderr
    assert "check passed: 20 of 20 tokens" in done.stderr
    assert done.stdout == alone(tiny_model)
    assert len(re.findall("^plan: ", done.stderr, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.long), *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 3, 4, 8))]
)
def test_with_sharded_weights_under_mpirun(tiny_model, ranks):
    done = mpirun(ranks, ["-m", "attention", *generate(tiny_model, "--verify", "--weights=sharded")], timeout_s=300.0)
    assert done.returncode == 0, done.stderr
    assert "check passed: 20 of 20 tokens" in done.stderr
    held, whole = (
        int(x.replace(",", "")) for x in re.search(r"weights: ([\d,]+) of ([\d,]+) bytes", done.stderr).groups()
    )
    assert held == pytest.approx(whole / ranks, rel=0.1)  # widths that the ranks do not divide


def alone(model):
    """The text that transformers writes alone."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    llama = transformers.AutoModelForCausalLM.from_pretrained(model)
    tokens = llama.generate(**inputs, max_new_tokens=20, do_sample=False)
    return tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True) + "\n"


@pytest.mark.long
def test_on_threads(tiny_model, capsys):
    assert main(generate(tiny_model, "--ranks=3", "--verify")) == 0
    said = capsys.readouterr()
    assert said.out == alone(tiny_model)
    for part in (
        r"set-up: [\d.]+ s for imports, the model and 3 ranks",
        r"prefill: 50 tokens; each of 3 ranks computes a part of the tokens",
        r"plan: allreduce attention\.logsumexp 272 B on 3 ranks: .*, proved, digest [0-9a-f]{12}",
        r"prefill: 50 tokens in [\d.]+ s, [\d.]+ tokens/s",
        r"decode: 19 tokens in [\d.]+ s, [\d.]+ tokens/s",
        r"cache of rank 2: \d+ tokens in \d+ runs?, [\d,]+ of [\d,]+ bytes used",
        r"check passed: 20 of 20 tokens are those of single-process transformers 5\.\S+ \(sdpa, .*\); "
        r"max \|logit difference\| \S+ over all 20 steps \(limit 0\.001\)",
    ):
        assert re.search(f"^{part}$", said.err, re.MULTILINE), part


@pytest.mark.long
def test_nothing_is_compiled_on_the_way_to_the_first_token(tiny_model):
    """Generation and `tree_decode` load no compiler."""
    code = f"""
import sys
import torch
from attention import tree_decode
from attention.__main__ import main
from topocomm import run_local
assert main({generate(str(tiny_model), "--ranks=2")!r}) == 0
run_local(lambda comm: tree_decode(torch.ones(1, 4, 1, 8), *[torch.ones(1, 2, 5, 8)] * 2, comm), ranks=2)
print(sorted({{"numba", "llvmlite", "attention.kernels._native"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["['attention.kernels._native']"], done.stderr


@pytest.mark.parametrize("method", ["ring", "allreduce"])
def test_other_methods(tiny_model, capsys, method):
    assert main(generate(tiny_model, "--ranks=4", "--verify", f"--method={method}")) == 0
    said = capsys.readouterr()
    assert said.out == alone(tiny_model)
    assert f"plan: {method} attention on 4 ranks" in said.err


def test_prompt_file_and_chat_template(tiny_model, tmp_path, capsys):
    """A model with a chat template gets the prompt as a message: the template's letters count as tokens."""
    chat = tmp_path / "chat"
    chat.mkdir()
    for file in tiny_model.iterdir():
        (chat / file.name).symlink_to(file)
    (chat / "chat_template.jinja").write_text("[{{ messages[0]['role'] }}:{{ messages[0]['content'] }}]")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT + "\n", encoding="utf-8")
    arguments = ["generate", f"--model={chat}", f"--prompt-file={prompt}", "--max-new-tokens=1", "--ranks=2"]
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert f"prefill: {len(PROMPT) + len('[user:]')} tokens" in said
    assert not re.search("^decode: .* tokens/s", said, re.MULTILINE)


def test_verify_fails_on_a_wrong_partial(tiny_model, capsys, monkeypatch):
    plant_lse_fault(monkeypatch)
    assert main(generate(tiny_model, "--ranks=2", "--verify")) == 1
    said = capsys.readouterr().err
    assert re.search(r"^check FAILED: \d+ of 20 tokens are those of", said, re.MULTILINE)


def test_compare_stops_at_the_first_token_that_differs():
    logits = torch.zeros(4, 3)
    other = torch.tensor([[0.0, 0.0, 0.1], [0.0, 0.2, 0.0], [5.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    tokens = torch.tensor([1, 2, 3, 4])
    assert compare(tokens, logits, tokens, other) == (4, 9.0)
    assert compare(tokens, logits, torch.tensor([1, 9, 3, 4]), other) == (1, pytest.approx(0.2))
    assert compare(tokens[:2], logits[:2], tokens, other) == (2, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--max-new-tokens=111"], ["50 prompt tokens", "111 new ones make 161", "the model has 160 positions"]),
    ],
)
def test_bad_input_for_this_model(tiny_model, capsys, arguments, parts):
    assert main(generate(tiny_model, *arguments)) == 2
    line = error_line(capsys)
    assert line.startswith("attention generate: error: ")
    assert all(part in line for part in parts)


def test_bad_prompts(tiny_model, capsys, tmp_path):
    assert main(generate(tiny_model, prompt="  ")) == 2
    assert "the prompt is empty" in error_line(capsys)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, part in (("latin", "not UTF-8"), ("nowhere", "No such file")):
        assert main(["generate", f"--model={tiny_model}", f"--prompt-file={tmp_path / name}"]) == 2
        assert part in error_line(capsys)


def test_bad_models(tiny_model, capsys, tmp_path):
    assert main(generate("meta/unknown")) == 2
    assert "expected one of smollm2, or a directory with config.json" in error_line(capsys)
    (tmp_path / "config.json").write_text("{}")
    assert main(generate(tmp_path)) == 2
    assert f"--model {tmp_path}: no usable" in error_line(capsys)
    chunked = tmp_path / "chunks"
    chunked.mkdir()
    for file in tiny_model.iterdir():
        (chunked / file.name).symlink_to(file)
    (chunked / "config.json").unlink()
    config = json.loads((tiny_model / "config.json").read_text())
    (chunked / "config.json").write_text(json.dumps({**config, "attention_chunk_size": 8}))
    assert main(generate(chunked)) == 2
    assert "in llama all layers attend in chunks (attention_chunk_size=8)" in error_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["generate", "--model=x"], "one of the arguments --prompt --prompt-file is required"),
        (["generate", "--model=x", "--prompt=a", "--prompt-file=b"], "not allowed with argument --prompt"),
        (["generate", "--model=x", "--prompt=a", "--max-new-tokens=0"], "--max-new-tokens: expected a whole number"),
        (
            ["generate", "--model=x", "--prompt=a", "--ranks=0"],
            "--ranks: expected a whole number of at least 1, got '0'",
        ),
        (["generate", "--model=x", "--prompt=a", "--method=star"], "--method: invalid choice: 'star'"),
        (["generate", "--prompt=a"], "the following arguments are required: --model"),
    ],
)
def test_bad_usage(capsys, arguments, part):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert part in error_line(capsys)


@pytest.mark.long
def test_bad_input_under_mpirun_ends_at_once(tiny_model):
    done = mpirun(2, ["-m", "attention", *generate(tiny_model, "--max-new-tokens=111")], timeout_s=60)
    assert done.returncode == 2
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("attention generate:")]
    assert len(said) == 1
    assert "the model has 160 positions" in said[0]


def test_missing_extra_is_named(tiny_model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(generate(tiny_model)) == 1
    line = error_line(capsys)
    assert "transformers, which is not installed" in line
    assert "pip install 'transformers" in line
