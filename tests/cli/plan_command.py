"""Runs `topocomm plan` in this process and reads what it says."""

import json

from topocomm.cli.main import main

H100 = ("--system", "dgx-h100")
SMALL = (*H100, "--bytes", "16KiB")


def run(capsys, *words):
    """Exit status, stdout and stderr of one command line."""
    try:
        status = main(["plan", *words])
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def planned(capsys, *words):
    """The JSON document of a plan that is made."""
    status, out, err = run(capsys, *words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)


def refused(capsys, *words):
    """The one line on stderr of a command line that is turned away with status 2."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("topocomm plan: ")
    return err
