"""The standard logger "topocomm", shown on standard error if TOPOCOMM_LOG asks for it."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

LOGGER = logging.getLogger("topocomm")
LOGGER.addHandler(logging.NullHandler())
LEVELS = {"off": logging.CRITICAL + 1, "info": logging.INFO, "debug": logging.DEBUG}


class _Errors(logging.StreamHandler[TextIO]):
    """Handler that writes to the current `sys.stderr`, a line in one write, since ranks share a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def show(level: str) -> None:
    """Show messages at a level of `LEVELS`; "off" leaves the logger to the program."""
    if level == "off":
        return
    LOGGER.setLevel(LEVELS[level])
    if not any(isinstance(handler, _Errors) for handler in LOGGER.handlers):
        handler = _Errors()
        handler.setFormatter(logging.Formatter("topocomm: %(message)s"))
        LOGGER.addHandler(handler)


def say(rank: int, text: str) -> None:
    """Log a message that is the same on all ranks: rank 0 at level info, others at debug."""
    LOGGER.log(logging.DEBUG if rank else logging.INFO, "rank %d: %s", rank, text)
