"""Output of a command: stdout and its width, or a file written whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress

from topocomm.cli.terminal.text_colours import coloured


def write_text(text: str, path: str | None = None, *, plain: Callable[[str], str] | None = None) -> None:
    """Write what people read, with colours where it goes to a stdout that wants them; as `write_result`."""
    write_result(coloured(text) if path is None else text, path, plain=plain)


def write_result(text: str, path: str | None, *, plain: Callable[[str], str] | None = None) -> None:
    """Write the text to stdout, or atomically to a file; `plain` rewrites it for an stdout that cannot encode it.

    Raises:
        OSError: The file cannot be written; an older file of that name is untouched.
    """
    if path is None:
        encoding = sys.stdout.encoding or "ascii"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = plain(text) if plain else text.encode(encoding, "backslashreplace").decode(encoding)
        sys.stdout.write(text)
        return
    target = os.path.realpath(path)
    data = text.encode("utf-8", "backslashreplace")
    if os.path.exists(target) and not os.path.isfile(target):  # a device or pipe
        with open(target, "wb") as device:
            device.write(data)
        return
    folder, name = os.path.split(target)  # a new file beside the old one, renamed when complete
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise OSError(error.errno, f"cannot write: {error.strerror}", path) from None


def terminal_columns() -> int | None:
    """Return the columns of the terminal on stdout; None if there is none, or it names no width."""
    if not sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else shutil.get_terminal_size((0, 0)).columns or None
