"""What JAX calls back for a collective: the communicator's call on NumPy arrays, as many in as there are operands.

JAX knows the shapes of all results before it runs: `result_shape` says them, from this rank's shapes alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import MismatchError, OperatorError
from topocomm.execute.communicator import Communicator
from topocomm.operators.layout import ROWS
from topocomm.operators.operator import Operator

Array = NDArray[Any]
JOINED_BYTES = 64 << 10
"""Largest array that is joined with others of its dtype: above, copying it takes longer than a call of its own."""


class Collective(NamedTuple):
    """A collective with all that does not change between its calls; a static parameter of traced programs.

    Attributes:
        name: The communicator's method.
        comm: The communicator.
        operator: Of allreduce and reduce_scatter.
        root: Of broadcast.
        fields: Names of the operands where they are the fields of one value; None: each is a value of its own.
    """

    name: str
    comm: Communicator
    operator: Operator | None = None
    root: int = 0
    fields: tuple[str, ...] | None = None

    @property
    def keeps_shapes(self) -> bool:
        """Whether results have the shapes of the operands."""
        return self.name in ("allreduce", "broadcast")

    @property
    def is_by_item(self) -> bool:
        """Whether an array may be cut and joined anywhere."""
        if self.name != "allreduce" or self.operator is None:
            return self.name == "broadcast"
        return [f.dims for f in self.operator.fields] == [(ROWS,)]

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this rank's result of an operand.

        Raises:
            OperatorError: The operand has no axis to cut or join.
        """
        if self.keeps_shapes:
            return shape
        if not shape:
            raise OperatorError(f"topocomm.jax.{self.name}: expected arrays with a first axis, got a scalar")
        rank, size, rows = self.comm.rank, self.comm.size, shape[0]
        if self.name == "allgather":
            return (size * rows, *shape[1:])
        part = (rank + 1) * rows // size - rank * rows // size
        return (part if self.name == "reduce_scatter" else part * size, *shape[1:])


def perform(what: Collective, operands: Sequence[Array]) -> list[Array]:
    """Make the call, or one for each value, and return arrays of the shapes that `result_shape` says. Collective.

    Raises:
        MismatchError: Ranks give other numbers of rows to an allgather; the communicator is closed.
        DeadlineError, MismatchError, OperatorError, RankFailedError: As for any call.
    """
    if what.fields is not None:
        result = _call(what, dict(zip(what.fields, operands, strict=True)))
        return [result[name] for name in what.fields]
    shapes = [what.result_shape(operand.shape) for operand in operands]
    results: dict[int, Array] = {}
    joined: dict[np.dtype[Any], list[int]] = defaultdict(list)
    for index, operand in enumerate(operands):
        if not operand.size:
            results[index] = np.empty(shapes[index], operand.dtype)
        elif what.is_by_item and operand.nbytes <= JOINED_BYTES:
            joined[operand.dtype].append(index)
        else:
            results[index] = _call(what, operand)
    for several in joined.values():
        whole = _call(what, np.concatenate([operands[index].reshape(-1) for index in several]))
        first = 0
        for index in several:
            shape, count = operands[index].shape, operands[index].size
            results[index] = whole[first : first + count].reshape(shape)
            first += count
    for index, operand in enumerate(operands):
        _check_shape(what, operand, results[index], shapes[index])
    return [results[index] for index in range(len(operands))]


def _call(what: Collective, value: Any) -> Any:
    comm, operator = what.comm, what.operator
    if what.name == "broadcast":
        return comm.broadcast(value, root=what.root)
    if operator is not None:
        return comm.allreduce(value, operator) if what.name == "allreduce" else comm.reduce_scatter(value, operator)
    return comm.allgather(value) if what.name == "allgather" else comm.alltoall(value)


def _check_shape(what: Collective, operand: Array, result: Array, expected: tuple[int, ...]) -> None:
    if result.shape != expected:
        error = MismatchError(
            f"rank {what.comm.rank}: topocomm.jax.{what.name}: expected {expected[0]} rows in all, as all ranks have "
            f"{operand.shape[0]}, got {result.shape[0]}; give arrays of one shape on all ranks, padded if they differ"
        )
        what.comm.session.fail(error)
        raise error
