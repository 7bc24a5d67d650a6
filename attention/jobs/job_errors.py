"""What ends a job with one line instead of a traceback."""

from __future__ import annotations

from topocomm import TopocommError


class InputError(TopocommError, ValueError):
    """The user gave something that the job cannot use; exit status 2."""


class SetupError(TopocommError, RuntimeError):
    """The machine lacks something that the job needs; exit status 1."""
