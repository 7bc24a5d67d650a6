"""Runs `topocomm plan` in this process and reads what it says."""

import json

from tests.cli.command_line import refuses, runs

H100 = ("--system", "dgx-h100")
SMALL = (*H100, "--bytes", "16KiB")


run = runs("plan")
refused = refuses("plan")


def planned(capsys, *words):
    """The JSON document of a plan that is made."""
    status, out, err = run(capsys, *words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)
