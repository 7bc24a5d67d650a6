"""Random collectives beside mpi4py's own, on groups of 1 to P ranks, several communicators at once: mpirun -n P.

    mpirun -n 8 python -m mpi4py tools/soak/beside_mpi.py [--calls 200] [--longest-mib 64] [--seed 1]

Every built-in operator on every dtype that it takes, values of 0 to 64 MiB, strided, in Fortran order, reversed or
read-only, by every kind of call and in every way that ranks exchange data. Integers, and what is only moved or chosen,
have the same bits; floats agree to 1e-6, 16-bit ones to their own precision. All ranks draw the same calls.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI
from mpi_reference import Value, Wanted, moved, reduced
from numpy.typing import NDArray
from streams import WAYS, topology

from topocomm import (  # fmt: skip
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
    Communicator,
    Handle,
    Operator,
    OperatorError,
)
from topocomm.operators.builtin import READY, SIZED
from topocomm.operators.dtypes import limits

OPERATORS = (*READY, *(of_size(3) for of_size in SIZED))
EXACT = (MAX, MIN, ARGMAX, ARGMIN)
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
MOVES = ("broadcast", "allgather", "gather", "scatter", "alltoall", "sendrecv")
DTYPES = (
    *map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")),
    np.dtype(ml_dtypes.bfloat16),
)
HOW = ("plain", "out", "prepared", "handle")
CALLS_A_GROUP = 10
TOLERANCE = 1e-6
WIDEST_SATURATED_BYTES = 2
"""Open MPI's sums of integers up to this size stop at the greatest number: sums and products here stay below it."""
MIB = 1 << 20


@dataclass(frozen=True)
class Call:
    """One call: what is wanted of it, the shape and dtype of its values, how it is made and how memory is laid out."""

    wanted: Wanted
    leading: tuple[int, ...]
    """Axes of this rank's value before those of a row."""
    dtype: np.dtype[Any]
    how: str
    memory: str

    def value(self, rng: np.random.Generator) -> Value:
        """This rank's value."""
        operator, layout = self.wanted.operator, self.wanted.layout
        if operator is None or layout is None:
            return {"value": laid_out(numbers(rng, self.dtype, self.leading), self.memory)}
        if operator.sample is not None:
            drawn = {name: np.asarray(array) for name, array in operator.sample(rng, layout).items()}
        else:
            drawn = {
                f.name: numbers(rng, f.dtype, (*layout.leading, *f.row_shape), operator.name) for f in layout.fields
            }
        return {name: laid_out(array, self.memory) for name, array in drawn.items()}

    def compare(self, got: Any, want: Value | None, comm: Communicator) -> None:
        """Compare a result with MPI's."""
        assert (got is None) == (want is None), f"{self}: got {got}"
        if want is None or got is None or (self.wanted.collective == "exscan" and comm.rank == 0):
            return
        fields = got if isinstance(got, dict) else {next(iter(want)): got}
        for name, array in want.items():
            same(np.asarray(fields[name]).reshape(array.shape), array, self, comm.size)


def same(got: NDArray[Any], want: NDArray[Any], call: Call, ranks: int) -> None:
    """Compare the arrays of one field."""
    assert got.dtype == want.dtype, f"{call}: {got.dtype}"
    operator = call.wanted.operator
    chosen = operator is None or operator in EXACT or operator.name.startswith("topk")
    if chosen or want.dtype.kind in "biu":
        assert got.tobytes() == np.ascontiguousarray(want).tobytes(), f"{call}: other bits"
        return
    half = want.dtype.itemsize == 2
    tolerance = 4 * ranks * float(limits(want.dtype).eps) if half else TOLERANCE
    a, b = (array.astype(np.complex128 if want.dtype.kind == "c" else np.float64) for array in (got, want))
    most = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * most, err_msg=str(call))


def numbers(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], operator: str = "") -> Any:
    """Any integers; floats about 1, whose sums and products lose nothing; any bits of what is only moved."""
    size = prod(shape)
    if not operator and dtype.kind != "b":
        return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if dtype.itemsize <= WIDEST_SATURATED_BYTES:
            low, high = {"sum": (low // 8, high // 8), "prod": (-(low < 0), 1)}.get(operator, (low, high))
        return rng.integers(low, high, shape, dtype, endpoint=True)
    real = rng.random(shape, np.float32) + np.float32(0.5)
    return real.astype(dtype) if dtype.kind != "c" else (real + 0.25j * rng.random(shape, np.float32)).astype(dtype)


def laid_out(array: NDArray[Any], memory: str) -> NDArray[Any]:
    """The same numbers in memory of another order, or with gaps."""
    match memory:
        case "strided" if array.ndim:
            return np.repeat(array, 2, axis=-1)[..., ::2]
        case "fortran":
            return np.asfortranarray(array)
        case "reversed" if array.ndim:
            return np.ascontiguousarray(array[::-1])[::-1]
        case "read-only":
            array = array.copy()
            array.flags.writeable = False
            return array
    return np.array(array, order="C")


MEMORY = ("plain", "strided", "fortran", "reversed", "read-only")


def draw(rng: np.random.Generator, rank: int, ranks: int, longest_bytes: int) -> Call:
    """A random call, the same on all ranks but for this rank's rows."""
    collective = str(rng.choice(REDUCTIONS + MOVES))
    size_bytes = int((longest_bytes + 1) ** rng.random()) - 1
    how, memory = str(rng.choice(HOW)), str(rng.choice(MEMORY))
    root, dim = int(rng.integers(ranks)), int(rng.integers(1, 9))
    if collective in REDUCTIONS:
        operator, dtype, shapes = pair(rng)
        row_bytes = operator.layout(shapes((1, dim))).packed_bytes(dim) or 1
        rows = size_bytes // row_bytes
        wanted = Wanted(collective, operator, operator.layout(shapes((rows, dim))), root, cut(rng, rows, ranks))
        return Call(wanted, (rows, dim), dtype, how, memory)
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    rows = size_bytes // (dim * dtype.itemsize)
    counts = cut(rng, rows, ranks)
    own = counts[rank] if collective in ("allgather", "gather") else rows
    if collective == "alltoall":  # every rank has others
        counts = [count for _ in range(ranks) for count in cut(rng, rows, ranks)]
    elif collective == "sendrecv":
        step, own = int(rng.integers(ranks)), counts[rank]
        counts = [counts[src] * (dst == (src + step) % ranks) for src in range(ranks) for dst in range(ranks)]
    return Call(Wanted(collective, None, None, root, counts), (own, dim), dtype, how, memory)


def pair(rng: np.random.Generator) -> tuple[Operator, np.dtype[Any], Callable[[tuple[int, ...]], Any]]:
    """An operator, a dtype that it takes, and the shapes and dtypes of its fields for a leading shape."""
    while True:
        operator, dtype = OPERATORS[int(rng.integers(len(OPERATORS)))], DTYPES[int(rng.integers(len(DTYPES)))]
        sizes = dict(operator.default_dims)

        def shapes(leading: tuple[int, ...], one: Any = operator, kind: Any = dtype, dims: Any = sizes) -> Any:
            return {
                f.name: (
                    (*leading, *(dims[d] for d in f.dims if d != "*rows")),
                    f.dtype if f.dtype is not None else kind,
                )
                for f in one.fields
            }

        try:
            operator.layout(shapes((1, 1)))
        except OperatorError:
            continue
        return operator, dtype, shapes


def cut(rng: np.random.Generator, rows: int, ranks: int) -> list[int]:
    """Cut rows in as many parts as there are ranks; some may be empty."""
    edges = np.sort(rng.integers(0, rows + 1, ranks - 1)).tolist()
    return [high - low for low, high in zip([0, *edges], [*edges, rows], strict=True)]


def begin(comm: Communicator, call: Call, x: Value) -> Any:
    """Make a call: its result, or the handle of one that is under way."""
    wanted, name = call.wanted, call.wanted.collective
    value: Any = dict(x) if len(x) > 1 else next(iter(x.values()))
    options: dict[str, Any] = {"root": wanted.root} if name in ("reduce", "broadcast", "gather", "scatter") else {}
    size, rank = comm.size, comm.rank
    if name in ("reduce_scatter", "scatter"):
        options["rows"] = wanted.rows
    elif name in ("alltoall", "sendrecv"):
        options["rows"] = wanted.rows[rank * size : (rank + 1) * size]
    if call.how in ("prepared", "handle"):
        prepared = comm.prepare(
            "alltoall" if name == "sendrecv" else name, like=value, operator=wanted.operator, **options
        )
        if name in ("broadcast", "scatter") and rank != wanted.root:
            value = None
        return prepared.start(value) if call.how == "handle" else prepared(value)
    if call.how == "out" and name in ("allreduce", "broadcast", "scan", "exscan"):
        value = {field: np.array(array) for field, array in x.items()}
        value = value if len(x) > 1 else next(iter(value.values()))
        options["out"] = value
    if name == "sendrecv":
        sent = options.pop("rows")
        return comm.sendrecv(value, next((peer for peer, rows in enumerate(sent) if rows), 0))
    return getattr(comm, name)(value, *([] if wanted.operator is None else [wanted.operator]), **options)


def group(world: MPI.Intracomm, seed: int, longest_bytes: int, tally: Counter[str]) -> None:
    """Calls on groups of the ranks: on each one's communicator and on that of one half of it, under way together."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(1, world.size + 1))
    whole: Any = world.Split(int(world.rank >= first), -world.rank if seed % 2 else world.rank)
    half: Any = whole.Split(whole.rank % 2, whole.rank)
    way = WAYS[seed % len(WAYS)]
    with Communicator.from_mpi(whole, topology(way, whole.size)) as one, one.split(one.rank % 2) or one as two:
        for number in range(CALLS_A_GROUP):
            calls = []
            for comm, reference in ((one, whole), (two, half)):
                drawn = np.random.default_rng([seed, number, comm.size, int(comm is two)])
                call = draw(drawn, comm.rank, comm.size, longest_bytes // (2 if comm is two else 1))
                x = call.value(np.random.default_rng([seed, number, world.rank, int(comm is two)]))
                if call.wanted.operator is None:
                    moves = moved(reference, call.wanted, x["value"])
                    want: Value | None = None if moves is None else {"value": moves}
                else:
                    want = reduced(reference, call.wanted, x)
                calls.append((comm, call, want, begin(comm, call, x), x))
                tally[f"{call.wanted.collective}"] += comm.rank == 0
            settle(calls, backwards=bool(world.rank % 2))
    half.Free()
    whole.Free()


def settle(calls: list[tuple[Communicator, Call, Value | None, Any, Value]], *, backwards: bool) -> None:
    """Let the calls that are under way move on together, in either order, and compare all results."""
    left = [got for _, _, _, got, _ in calls if isinstance(got, Handle)][:: -1 if backwards else 1]
    while left:
        left = [handle for handle in left if not handle.test()]
    for comm, call, want, got, _ in calls:
        call.compare(got.wait() if isinstance(got, Handle) else got, want, comm)


def main() -> None:
    """Run until so many collectives have come through, or one fails."""
    parser = argparse.ArgumentParser(description="Random collectives beside mpi4py's own.")
    parser.add_argument("--calls", type=int, default=200, help="collectives, counted once for a group (default 200)")
    parser.add_argument("--longest-mib", type=int, default=64, help="longest value, in MiB (default 64)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    first = seed = world.bcast(options.seed)
    tally: Counter[str] = Counter()
    total = 0
    while total < options.calls:
        try:
            group(world, seed, options.longest_mib * MIB, tally)
        except BaseException:
            print(f"rank {world.rank} FAILED; again with --seed {seed} --calls 1", flush=True)
            raise
        seed += 1
        total = world.allreduce(sum(tally.values()))
    told = ", ".join(f"{name} {count}" for name, count in sorted(sum(world.allgather(tally), Counter()).items()))
    if world.rank == 0:
        print(f"beside MPI: {total} collectives of seeds {first}..{seed - 1}, none differs ({told})", flush=True)


if __name__ == "__main__":
    main()
