"""What a row of the table measures: one way to do a collective, whoever wrote it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

Call = Callable[[], object]
Arrays = Mapping[str, NDArray[Any]]


class Library(ABC):
    """Another library's collectives on NumPy arrays, between the same ranks over the same wires.

    Every method sets a call up; what it returns runs it, again and again. `send` and `receive` may be one array: in
    place then. None is returned where the library has no such call.
    """

    rank: int
    size: int
    name: str
    """How it calls itself, for the names of rows: MPI, gloo."""

    @abstractmethod
    def collective(self, name: str, send: NDArray[Any], receive: NDArray[Any], op: str | None) -> Call | None:
        """Any of our collectives, with the operator of this name where it combines; root 0."""

    @abstractmethod
    def title(self, collective: str) -> str:
        """The name of the library's own function."""

    def allreduce(self, send: NDArray[Any], receive: NDArray[Any], op: str) -> Call | None:
        """An allreduce with sum, prod, max, min, band, bor or bxor."""
        return self.collective("allreduce", send, receive, op)

    def allgather(self, send: NDArray[Any], receive: NDArray[Any]) -> Call | None:
        """An all-gather; `receive` is [ranks, *send.shape]."""
        return self.collective("allgather", send, receive, None)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what was made; collective."""


class Method(Protocol):
    """One way to do a collective."""

    name: str
    """The row's name."""

    in_place: bool
    """Whether it can write its result over its value."""

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set everything up; False where it cannot be done with these arrays, on every rank alike; collective.

        Args:
            x: This rank's value by field. In place, `out` is x.
            out: Arrays for the result, used by those that write it there.
        """

    def run(self) -> object:
        """Do it once; collective. This is what is timed."""

    def result(self) -> Arrays | None:
        """The result of the last run by field; None where it has none, on this rank or at all. Not timed."""

    def free(self) -> None:
        """Give everything back; collective."""
