"""Collectives by mpi4py alone, to compare with: by MPI's own operators, or by one made of an operator's combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from topocomm import Operator
from topocomm.operators.layout import Layout

Value = Mapping[str, NDArray[Any]]
"""One array per field."""
OWN: dict[str, dict[str, MPI.Op]] = {
    "iu": {
        **{"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN},
        **{"band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR},
    },
    "f": {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN},
    "c": {"sum": MPI.SUM, "prod": MPI.PROD},
    "b": {"band": MPI.LAND, "bor": MPI.LOR, "bxor": MPI.LXOR},
}
"""MPI's own operators by kinds of dtype."""
FEWEST_BYTES = {"f": 4}
"""MPI has no 16-bit floats."""


@dataclass(frozen=True)
class Wanted:
    """A collective, as all ranks know it.

    Attributes:
        operator: Of a reduction.
        layout: Of this rank's value, of a reduction.
        rows: Entries of the first axis: of each rank's value, or what each rank gets (reduce_scatter, scatter); of
            alltoall and sendrecv from each rank to each.
    """

    collective: str
    operator: Operator | None = None
    layout: Layout | None = None
    root: int = 0
    rows: Sequence[int] = field(default_factory=tuple)


def moved(comm: MPI.Intracomm, wanted: Wanted, x: NDArray[Any]) -> NDArray[Any] | None:
    """Return the result of a collective that combines nothing; None on ranks that get none."""
    rank, size, root, rows = comm.rank, comm.size, wanted.root, wanted.rows
    row_bytes = prod(x.shape[1:]) * x.dtype.itemsize
    send = np.ascontiguousarray(x).reshape(-1).view(np.uint8) if x.size else np.empty(0, np.uint8)

    def empty(count: int) -> NDArray[np.uint8]:
        return np.empty(count * row_bytes, np.uint8)

    def counts(some: Sequence[int]) -> list[int]:
        return [count * row_bytes for count in some]

    match wanted.collective:
        case "broadcast":
            received = send.copy()
            comm.Bcast(received, root)
        case "allgather":
            received = empty(sum(rows))
            comm.Allgatherv(send, [received, counts(rows)])
        case "gather":
            received = empty(sum(rows) if rank == root else 0)
            comm.Gatherv(send, [received, counts(rows)] if rank == root else None, root)
        case "scatter":
            received = empty(rows[rank])
            comm.Scatterv([send, counts(rows)] if rank == root else None, received, root)
        case "alltoall":
            got = rows[rank::size]
            received = empty(sum(got))
            comm.Alltoallv([send, counts(rows[rank * size : (rank + 1) * size])], [received, counts(got)])
        case _:  # sendrecv, every rank to another one
            got = rows[rank::size]
            received = empty(sum(got))
            dest = next((peer for peer in range(size) if rows[rank * size + peer]), MPI.PROC_NULL)
            source = next((peer for peer in range(size) if got[peer]), MPI.PROC_NULL)
            comm.Sendrecv(send, dest, 0, received, source, 0)
    if wanted.collective == "gather" and rank != root:
        return None
    shape = (received.size // row_bytes if row_bytes else _rows_without_bytes(wanted, comm, len(x)), *x.shape[1:])
    return received.view(x.dtype).reshape(shape) if received.size else np.empty(shape, x.dtype)


def _rows_without_bytes(wanted: Wanted, comm: MPI.Comm, own: int) -> int:
    """Entries that a rank gets of values whose rows have no items."""
    rows = wanted.rows
    if wanted.collective in ("alltoall", "sendrecv"):
        return sum(rows[comm.rank :: comm.size])
    return {"broadcast": own, "scatter": rows[comm.rank] if rows else 0}.get(wanted.collective, sum(rows))


def reduced(comm: MPI.Intracomm, wanted: Wanted, x: Value) -> Value | None:
    """Return the result of a reduction, rows flattened; None on ranks that get none. Rank 0 of exscan gets anything."""
    assert wanted.operator is not None
    assert wanted.layout is not None
    layout, name = wanted.layout, wanted.collective
    record = np.dtype([(f.name, f.dtype, f.row_shape) for f in layout.fields])
    sent = np.zeros(layout.rows, record)
    for part, array in x.items():
        sent[part] = array.reshape(layout.rows, *record[part].shape)
    item = prod(layout.leading[1:])
    counts = [count * item for count in wanted.rows]
    received = np.zeros(counts[comm.rank] if name == "reduce_scatter" else layout.rows, record)
    with _operator(wanted.operator, record) as (operator, kind):
        send, receive = _buffer(sent, kind), _buffer(received, kind)
        match name:
            case "allreduce":
                comm.Allreduce(send, receive, operator)
            case "reduce":
                comm.Reduce(send, receive if comm.rank == wanted.root else None, operator, wanted.root)
            case "reduce_scatter":
                comm.Reduce_scatter(send, receive, counts, operator)
            case "scan":
                comm.Scan(send, receive, operator)
            case "exscan":
                comm.Exscan(send, receive, operator)
    if name == "reduce" and comm.rank != wanted.root:
        return None
    return {part: received[part] for part in x}


def _buffer(array: NDArray[Any], kind: MPI.Datatype | None) -> Any:
    if kind is None:
        return array.view(array.dtype[0])
    return [array, len(array), kind]


@contextmanager
def _operator(operator: Operator, record: np.dtype[Any]) -> Iterator[tuple[MPI.Op, MPI.Datatype | None]]:
    """MPI's own operator, or one that calls the combine on whole records, in rank order, with their type."""
    names = record.names or ()
    dtype = record[0]
    known = next((some for kinds, some in OWN.items() if dtype.kind in kinds and dtype.shape == ()), {})
    own = known.get(operator.name) if dtype.itemsize >= FEWEST_BYTES.get(dtype.kind, 1) else None
    if own is not None and len(names) == 1:
        yield own, None
        return

    def fold(left: Any, right: Any, _: Any) -> None:  # right = left . right
        a, b = np.frombuffer(left, record), np.frombuffer(right, record)
        combined = operator.combine({name: a[name] for name in names}, {name: b[name] for name in names})
        for name in names:
            b[name] = combined[name]

    kind = MPI.BYTE.Create_contiguous(record.itemsize).Commit()
    made = MPI.Op.Create(fold, commute=False)
    try:
        yield made, kind
    finally:
        made.Free()
        kind.Free()
