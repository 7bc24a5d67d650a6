"""Colours, where the output is a terminal that wants them: titles, warnings, what to do next, errors.

`NO_COLOR` and `TERM=dumb` turn them off, `FORCE_COLOR` and `CLICOLOR_FORCE` on, also in pipes (no-color.org,
force-color.org, bixense.com/clicolors).
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from topocomm.cli.command_ranks import launched_as

_BOLD, _RED, _YELLOW, _GREEN, _DIM, _PLAIN = (f"\x1b[{code}m" for code in (1, 31, 33, 32, 2, 0))
_WORDS = {
    re.compile(r"\A(?!(?:ok|info|warn|FAIL) )[^\n]+"): _BOLD,
    re.compile(r"^FAIL\b|\bDIFFERENT BITS\b", re.MULTILINE): _RED,
    re.compile(r"^(?:Note|Unknown|Assumed|warn\b)|^  (?:sooner|omitted) ", re.MULTILINE): _YELLOW,
    re.compile(r"^(?:Next|ok\b)", re.MULTILINE): _GREEN,
    re.compile(r"^ +-> .*", re.MULTILINE): _BOLD,
}
"""What is coloured, in the texts of all commands."""


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream ends at a terminal that moves its cursor; what a launcher passes on never does.

    Open MPI's mpirun gives its ranks terminals of their own, also where its output goes to a file.
    """
    return stream.isatty() and os.environ.get("TERM") != "dumb" and launched_as() is None


def wants_colour(stream: TextIO) -> bool:
    """Return whether to colour what goes to a stream."""
    environment = os.environ
    if environment.get("NO_COLOR"):
        return False
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        if environment.get(name, "0") != "0":
            return True
    return is_terminal(stream) and environment.get("CLICOLOR") != "0"


def coloured(text: str, stream: TextIO | None = None) -> str:
    """Return the text of a command with colours, if the stream (stdout) wants any."""
    if not wants_colour(sys.stdout if stream is None else stream):
        return text
    for pattern, code in _WORDS.items():
        text = pattern.sub(f"{code}\\g<0>{_PLAIN}", text)
    return text


def complaint(who: str, message: str) -> str:
    """Return an error as one line of ASCII for stderr."""
    line = " ".join(message.split()).encode("ascii", "backslashreplace").decode()
    return f"{_RED}{who}{_PLAIN}: {line}\n" if wants_colour(sys.stderr) else f"{who}: {line}\n"
