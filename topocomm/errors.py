"""Every error class of topocomm; a leaf that all rooms import.

Each class is also the built-in class that fits its meaning, so that callers who do not know topocomm can
still catch it: a bad topology is a `ValueError`, a missed deadline a `TimeoutError`.
"""


class TopocommError(Exception):
    """Base of all errors that topocomm and attention raise on purpose."""


class TopologyError(TopocommError, ValueError):
    """A topology, or the text it was read from, is unusable; the message names file and line."""


class PlanError(TopocommError, ValueError):
    """A plan or schedule is invalid, unproven, altered, or made for something else."""


class OperatorError(TopocommError, ValueError):
    """An operator, or the arrays given to it, break its declaration."""


class MismatchError(TopocommError, ValueError):
    """Ranks disagree about the call they make; the message names the ranks that differ."""


class DeadlineError(TopocommError, TimeoutError):
    """A wait reached its time limit; the message names the ranks awaited."""


class RankFailedError(TopocommError, RuntimeError):
    """Another rank failed or left; the message names it."""


class MissingExtraError(TopocommError, ImportError):
    """An optional library is needed; the message names the extra that installs it."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package}, which is not installed; run: pip install 'topocomm[{extra}]'")
