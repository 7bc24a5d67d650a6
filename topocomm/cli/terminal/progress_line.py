"""A line on stderr that says what a command does, and for how long: for who waits at a terminal for over a second."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Self, TextIO

from topocomm.cli.terminal.text_colours import is_terminal

FIRST_S, EVERY_S = 1.0, 0.25
"""Seconds before the line is shown, and between its changes."""


class ProgressLine:
    """Shows what was said last, in a context: `with ProgressLine("planning") as progress: progress("2 of 9")`.

    The line is gone when the context ends. Nothing is written to a stream (stderr) that is no terminal.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._words = ""
        self._is_shown = is_terminal(self._stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __call__(self, words: str) -> None:
        """Say what comes next."""
        self._words = words

    def __enter__(self) -> Self:
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._ended.set()
            self._thread.join()

    def _show(self) -> None:
        began_s = time.monotonic()
        if self._ended.wait(FIRST_S):
            return
        while True:
            text = f"{self._title} {self._words}".rstrip() + f" ({time.monotonic() - began_s:.0f} s)"
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
            self._stream.flush()
            if self._ended.wait(EVERY_S):
                break
        self._stream.write("\r\x1b[K")
        self._stream.flush()
