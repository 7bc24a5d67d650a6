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


def without_choice(text):
    """The text of a plan without the lines that say what it was chosen from: a saved plan does not know."""
    lines, kept = text.splitlines(keepends=True), []
    for line in lines:
        label = line[:10].strip() if line.startswith("  ") else "-"
        kept.append(label in ("why", "others") or (not label and bool(kept) and kept[-1]))
    return "".join(line for line, left_out in zip(lines, kept, strict=True) if not left_out)


def refused(capsys, *words):
    """The one line on stderr of a command line that is turned away with status 2."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("topocomm plan: ")
    return err
