"""`python -m attention`: its help, its versions, and what wrong words were meant to be."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from attention.__main__ import COMMANDS, main


def ended(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert ended(["--help"]) == 0
    assert capsys.readouterr().out == bare
    assert all(f"{name} " in bare and summary in bare for name, summary in COMMANDS.items())


def test_versions_are_told(capsys):
    assert ended(["--version"]) == 0
    assert f"topocomm {importlib.metadata.version('topocomm')}, torch " in capsys.readouterr().out


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("genrate --model smollm2", "generate"),
        ("server", "serve"),
        ("decode --contxt 8", "--context"),
        ("decode --kv_heads 8", "--kv-heads"),
        ("decode --np 2", "--ranks"),
        ("generate --modle smollm2 --prompt x", "--model"),
        ("decode --method treee", "tree"),
        ("decode --ring", "--method ring"),
        ("serve --prot 80", "--port"),
        ("decode --device gpu", "cuda"),
    ],
)
def test_wrong_words_end_with_what_was_meant(capsys, line, meant):
    assert ended(line.split()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith(f"; did you mean {meant}?\n")


@pytest.mark.parametrize(
    ("words", "owners"),
    [
        (["generate", "--heads", "3"], "`python -m attention decode`"),
        (["decode", "--model", "x"], "`python -m attention generate`, `python -m attention serve`"),
    ],
)
def test_an_option_of_another_command_is_said_to_belong_to_it(capsys, words, owners):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f": unrecognized arguments: {words[1]}; it belongs to {owners}\n")


def test_a_prompt_that_is_no_utf_8_says_how_to_make_it(capsys, tmp_path):
    (tmp_path / "prompt.txt").write_text("x", "utf-16")
    assert main(["generate", "--model", "smollm2", "--prompt-file", str(tmp_path / "prompt.txt")]) == 2
    assert capsys.readouterr().err.endswith("cannot be read: not UTF-8; expected that, as by `iconv -t UTF-8`\n")


def test_a_wrong_model_is_said_before_large_libraries_are_imported():
    program = "import sys; from attention.__main__ import main; main('generate --model x --prompt x'.split())"
    program += "; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "False\n"


def test_a_model_that_is_not_known_is_bad_input(capsys):
    assert main(["generate", "--model", "smollm", "--prompt", "x"]) == 2
    assert capsys.readouterr().err.endswith("nothing is downloaded; did you mean smollm2?\n")


@pytest.mark.parametrize("text", ["0K", "8x", "K", "64KB", "1.5M", "0"])
def test_tokens_have_units(capsys, text):
    assert ended(["decode", "--context", text]) == 2
    expected = f"argument --context: expected a number of tokens such as 65536, 64K or 1M, got {text!r}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_a_context_in_units(capsys):
    words = "decode --context 1K --heads 2 --kv-heads 1 --head-dim 8 --steps 1 --method Tree"
    assert main(words.split()) == 0
    assert "1024" in capsys.readouterr().out.replace(",", "")


def test_neither_help_nor_errors_load_torch():
    program = """
import contextlib, io, json, sys
from attention.__main__ import main
lines = "--help, --version, genrate, decode --help, decode --nonsense, decode --heads 3 --kv-heads 2, generate, serve"
for line in lines.split(", "):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        with contextlib.redirect_stderr(io.StringIO()):
            main(line.split())
heavy = ("torch", "transformers", "mpi4py", "topocomm.execute.communicator", "topocomm.planning.planner")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
