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
LONG_S = 5.0
"""Seconds of work from which on a stream that is no terminal is told, once, about how long it takes."""


class ProgressLine:
    """Shows what was said last, in a context: `with ProgressLine("planning") as progress: progress("2 of 9")`.

    The line is gone when the context ends. A stream (stderr) that is no terminal gets one line at most, after the first
    of `steps`: about how long all will take, where that is long. Steps share plans, so later ones count half.
    """

    def __init__(self, title: str, stream: TextIO | None = None, *, steps: int = 1) -> None:
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._words = ""
        self._steps, self._said, self._began_s = steps, 0, 0.0
        self._is_shown = is_terminal(self._stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __call__(self, words: str) -> None:
        """Say what comes next."""
        self._words = words
        self._said += 1
        if self._said == 2 and not self._is_shown:
            about_s = (time.monotonic() - self._began_s) * (self._steps + 1) / 2
            if about_s >= LONG_S:
                self._stream.write(f"{self._title} {self._steps} of them: about {about_s:.0f} s\n")
                self._stream.flush()

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
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
