"""Every error class of topocomm; a leaf that all rooms import.

Each class is also the built-in class that fits its meaning, so that callers who do not know topocomm can
still catch it: a bad topology is a `ValueError`, a missed deadline a `TimeoutError`.
"""

import re


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
    """An optional library is needed: `name`. The message has the command that installs what the extra brings."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        message = f"{feature} needs {package}, which is not installed; run: {install_command(extra)}"
        super().__init__(message, name=package)


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of topocomm brings.

    It names the libraries and not `topocomm[extra]`, so it is right wherever topocomm itself was installed from: a
    clone, a wheel or an index. A copy that was never installed has no metadata; then its folder is the place to be.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("topocomm") or []
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in topocomm's folder"
    wanted = re.compile(rf"([^;]+);.*\bextra == ['\"]{extra}['\"]")
    return " ".join(["pip install", *(f"'{match[1].strip()}'" for match in map(wanted.match, lines) if match)])
