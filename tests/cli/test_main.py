import argparse
import json
import subprocess
import sys

import pytest

from topocomm.cli import main as module
from topocomm.cli.main import COMMANDS, WHICH, main, parser_of
from topocomm.errors import DeadlineError, MissingExtraError, PlanError, TopologyError


def status_of(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.mark.parametrize("words", [["inspec"], ["--", "inspect"], ["-x"]])
def test_bad_commands_are_one_line_and_status_2(capsys, words):
    assert status_of(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_help_lists_every_command(capsys):
    assert status_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert "which command when:" in bare
    assert status_of(["--help"]) == 0
    assert capsys.readouterr().out == bare


def test_help_is_a_command_too(capsys):
    for words in (["help", "inspect"], ["inspect", "-h"]):
        assert status_of(words) == 0
        assert capsys.readouterr().out.startswith("usage: topocomm inspect ")


def test_the_examples_of_the_help_are_command_lines():
    lines = [
        words.split() for line in WHICH.replace(";", "\n").splitlines() if (words := line.partition("topocomm ")[2])
    ]
    assert len(lines) == 5
    assert max(map(len, WHICH.splitlines())) <= 80
    for words in lines:
        assert parser_of(words[:1])[0].parse_args(words).command == words[0]


def test_json_is_short_for_the_format(capsys):
    assert main(["inspect", "--system", "dgx-h100", "--json"]) == 0
    short = capsys.readouterr().out
    assert main(["inspect", "--system", "dgx-h100", "--format", "json"]) == 0
    assert capsys.readouterr().out == short


def test_every_command_with_json_has_the_short_form(capsys):
    having = {name for name in COMMANDS if status_of([name, "--help"]) == 0 and "--json" in capsys.readouterr().out}
    assert having == {"inspect", "plan", "simulate", "calibrate", "bench"}


def test_names_are_read_without_regard_to_case(capsys):
    assert main(["Inspect", "--system", "DGX_H100", "--format", "JSON"]) == 0
    assert capsys.readouterr().out.startswith('{"schema": "topocomm.topology/1"')


def test_little_is_imported_for_help_and_for_errors_in_options():
    """So each starts fast."""
    program = """
import contextlib, io, json, sys
from topocomm.cli.main import COMMANDS, WHICH, main, parser_of
loaded = {}
h100 = ["--system", "dgx-h100"]
wrong = [
    *([name, "--unknown"] for name in COMMANDS),
    *([name, *h100, "--bytes", "8x"] for name in ("plan", "simulate", "order")),
    *([name, "--operator", "add"] for name in ("plan", "simulate", "order", "bench")),
    *([name, *h100, "--without", "GPU9"] for name in ("plan", "simulate")),
    *([name, *h100, "--ranks", "99"] for name in ("plan", "simulate")),
    ["plan", *h100, "--sizes", "8:4:2"], ["simulate", *h100, "--algorithm", "x"], ["simulate", "--model", "x"],
    ["plan", "--system", "dgx"], ["plan", *h100, "--collective", "x"], ["calibrate", "--input", "x", "--system", "y"],
    ["bench", "--sizes", "0"],
]
for words in (["--help"], ["--version"], ["inspec"], *([name, "--help"] for name in COMMANDS), *wrong):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        with contextlib.redirect_stderr(io.StringIO()):
            main(words)
    large = ("numpy", "topocomm.planning.planner", "topocomm.execute")
    loaded[" ".join(words)] = [x for x in large if x in sys.modules]
print(json.dumps(loaded))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    assert len(loaded) == 39
    assert {words for words, modules in loaded.items() if modules} == {"bench --sizes 0"}  # what the rows are


def test_a_machine_that_is_named_wrongly_is_said_once(monkeypatch, capsys):
    words = ["plan", "--system", "dgxh10", "--bytes", "4"]
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, status, lines in (("0", 2, 1), ("1", 0, 0)):
        monkeypatch.setenv("PMI_RANK", rank)
        assert main(words) == status
        assert capsys.readouterr().err.count("\n") == lines


def test_only_the_chosen_command_is_imported(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "topocomm.cli.plan_command", raising=False)
    assert main(["inspect", "--system", "dgx-h100"]) == 0
    assert "topocomm.cli.plan_command" not in sys.modules


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (TopologyError("bad\ntext"), 2, "topocomm inspect: bad text"),
        (PlanError("altered"), 2, "topocomm inspect: altered"),
        (DeadlineError("too late"), 1, "topocomm inspect: too late"),
        (MissingExtraError("MPI", "mpi4py", "mpi"), 1, "pip install 'mpi4py"),
        (OSError(13, "Permission denied", "f"), 1, "topocomm inspect: f: Permission denied"),
        (OSError("disk gone"), 1, "topocomm inspect: disk gone"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_one_line_and_a_status(capsys, error, status, said):
    def fail(_):
        raise error

    assert module._run(fail, argparse.Namespace(command="inspect")) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
