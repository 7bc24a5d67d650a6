import argparse
import sys

import pytest

from topocomm.cli import main as module
from topocomm.cli.main import COMMANDS, main
from topocomm.errors import DeadlineError, MissingExtraError, PlanError, TopologyError


def status_of(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.mark.parametrize("words", [[], ["inspec"], ["--", "inspect"], ["-x"]])
def test_bad_commands_are_one_line_and_status_2(capsys, words):
    assert status_of(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_help_lists_every_command(capsys):
    assert status_of(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


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
