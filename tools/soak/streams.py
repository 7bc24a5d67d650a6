"""Random calls of every collective, each checked against NumPy: the traffic of the soak programs.

All ranks draw the same calls from one seed, and every rank knows every rank's values, so each checks its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention import LOGSUMEXP
from topocomm import AFFINE, MAX, SUM, Communicator, Device, Handle, Link, Operator, PreparedCall, Topology

Value = dict[str, Any]
"""One array per field."""
COLLECTIVES = (
    "allreduce",
    "canonical",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "allgather",
    "gather",
    "scatter",
    "alltoall",
    "scan",
    "exscan",
    "barrier",
)
CARRIED = ("broadcast", "allgather", "gather", "scatter", "alltoall")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
OPERATORS = (SUM, MAX, AFFINE, LOGSUMEXP)
HOW = ("plain", "out", "prepared", "handle")
FOLDS: dict[Operator, Callable[[Value, Value], Value]] = {
    SUM: lambda a, b: {"value": a["value"] + b["value"]},
    MAX: lambda a, b: {"value": np.maximum(a["value"], b["value"])},
    AFFINE: lambda a, b: {"a": b["a"] * a["a"], "b": b["a"] * a["b"] + b["b"]},
}
WAYS = ("shared", "messages", "two levels")


def joined(sizes: Sequence[int]) -> Topology:
    """Hosts of that many CPUs on one network, whatever machine this is: ranks on different ones share no memory."""
    devices = [Device("network", "switch", host="network")]
    links: list[Link] = []

    def both(a: str, b: str, kind: str, latency_us: float) -> None:
        links.extend(Link(src, dst, kind, gb_per_s=10.0, latency_us=latency_us) for src, dst in ((a, b), (b, a)))

    for host, count in enumerate(sizes):
        devices.append(Device(f"h{host}/memory", "numa", host=f"h{host}"))
        both(f"h{host}/memory", "network", "network", 9.0)
        for cpu in range(count):
            devices.append(Device(f"h{host}/cpu{cpu}", "cpu", host=f"h{host}"))
            both(f"h{host}/cpu{cpu}", f"h{host}/memory", "memory", 1.0)
    return Topology(f"hosts of {list(sizes)}", "soak", tuple(devices), tuple(links))


def topology(way: str, ranks: int) -> Topology | None:
    """The machine that makes ranks of one host exchange data in this way."""
    if way == "shared":
        return None
    return joined([1] * ranks if way == "messages" else [(ranks + 1) // 2, ranks // 2])


def fold(operator: Operator, values: Sequence[Value]) -> Value:
    """The fold of values in rank order, by NumPy; partials in float64."""
    if operator is not LOGSUMEXP:
        result = values[0]
        for value in values[1:]:
            result = FOLDS[operator](result, value)
        return result
    lse = np.stack([v["lse"] for v in values]).astype(np.float64)
    top = np.where(np.isneginf(lse.max(0)), 0, lse.max(0))
    weights = np.exp(lse - top)
    total = weights.sum(0)
    out = np.einsum("pr,prd->rd", weights, np.stack([v["out"] for v in values]))
    with np.errstate(divide="ignore"):
        return {"out": out / np.where(total == 0, 1, total)[:, None], "lse": top + np.log(total)}


def identity(operator: Operator, like: Value) -> Value:
    """The identity of an operator in the shapes of a value."""
    fill = operator.identities(operator.layout({name: (array.shape, array.dtype) for name, array in like.items()}))
    return {name: np.full_like(array, fill[name]) for name, array in like.items()}


def cut(value: Value, rows: slice) -> Value:
    """Some rows of a value."""
    return {name: array[rows] for name, array in value.items()}


@dataclass(frozen=True)
class Call:
    """One kind of call.

    Attributes:
        collective: Its name; "canonical" is an allreduce in canonical order.
        operator: The operator; carried values are of its fields.
        rows: Entries of the first axis that every rank gives.
        dim: Width of a row.
        root: Of reduce, broadcast, gather and scatter.
        how: "plain", "out" (into the value's own arrays, or fresh ones), "prepared" or "handle".
    """

    collective: str
    operator: Operator
    rows: tuple[int, ...]
    dim: int
    root: int
    how: str

    def value(self, rng: np.random.Generator, rows: int) -> Value:
        """Random values; sums of them are exact, and every seventh partial row or so is empty."""
        if self.operator is LOGSUMEXP:
            lse = np.where(rng.random(rows) < 0.15, -np.inf, 3 * rng.standard_normal(rows)).astype(np.float32)
            out = rng.standard_normal((rows, self.dim), dtype=np.float32)
            return {"out": np.where(np.isneginf(lse)[:, None], np.float32(0), out), "lse": lse}
        if self.operator is AFFINE:
            return {name: rng.integers(0, 2**63, (rows, self.dim), np.uint64) for name in ("a", "b")}
        return {"value": rng.integers(-1000, 1000, (rows, self.dim)).astype(np.float64)}

    def values(self, rng: np.random.Generator) -> list[Value]:
        """One value a rank."""
        return [self.value(rng, rows) for rows in self.rows]

    def expected(self, values: Sequence[Value], rank: int) -> Value | None:
        """Return a rank's expected result; None for none."""
        operator, ranks = self.operator, len(values)
        match self.collective:
            case "barrier":
                return None
            case "allreduce" | "canonical":
                return fold(operator, values)
            case "reduce":
                return fold(operator, values) if rank == self.root else None
            case "broadcast":
                return values[self.root]
            case "reduce_scatter":
                rows = self.rows[0]
                return cut(fold(operator, values), slice(rows * rank // ranks, rows * (rank + 1) // ranks))
            case "gather" if rank != self.root:
                return None
            case "scatter":
                rows = self.rows[0]
                return cut(values[self.root], slice(rows * rank // ranks, rows * (rank + 1) // ranks))
            case "alltoall":
                rows = self.rows[0]
                values = [cut(v, slice(rows * rank // ranks, rows * (rank + 1) // ranks)) for v in values]
                return {name: np.concatenate([v[name] for v in values]) for name in values[0]}
            case "allgather" | "gather":
                return {name: np.concatenate([v[name] for v in values]) for name in values[0]}
            case "scan":
                return fold(operator, values[: rank + 1])
        return fold(operator, values[:rank]) if rank else identity(operator, values[0])

    def check(self, got: Value | None, want: Value | None) -> None:
        """Compare a result; partials within rounding."""
        assert (got is None) == (want is None), f"{self}: got {got}"
        if got is None or want is None:
            return
        for name, array in want.items():
            if self.operator is LOGSUMEXP:
                np.testing.assert_allclose(got[name], array, atol=1e-4, err_msg=str(self))
            else:
                np.testing.assert_array_equal(got[name], array, err_msg=str(self))

    def plainly(self, comm: Communicator, x: Value) -> Any:
        """The call as a method of the communicator."""
        if self.collective == "barrier":
            comm.barrier()
            return None
        options: dict[str, Any] = {"root": self.root} if self.collective in ROOTED else {}
        if self.how == "out" and self.collective in ("allreduce", "canonical", "broadcast", "scan", "exscan"):
            options["out"] = x
        operators = () if self.collective in CARRIED else (self.operator,)
        if self.collective == "canonical":
            return comm.allreduce(x, *operators, order="canonical", **options)
        return getattr(comm, self.collective)(x, *operators, **options)

    def prepare(self, comm: Communicator) -> PreparedCall:
        """The call made ready."""
        like = self.value(np.random.default_rng(0), self.rows[comm.rank])
        name = "allreduce" if self.collective == "canonical" else self.collective
        operator = None if name in CARRIED else self.operator
        order = "canonical" if self.collective == "canonical" else "any"
        return comm.prepare(name, like=like, operator=operator, root=self.root, order=order)


def draw(rng: np.random.Generator, ranks: int, *, longest: int = 3000) -> Call:
    """A random kind of call.

    Args:
        rng: The same on all ranks.
        ranks: How many.
        longest: Most elements of a value, about.
    """
    collective = str(rng.choice(COLLECTIVES))
    dim = int(rng.integers(1, 64))
    most = max(2, int(longest ** rng.random()) // dim)
    rows = [int(rng.integers(0, most))] * ranks
    if collective in ("allgather", "gather"):
        rows = rng.integers(0, most, ranks).tolist()
    operator = OPERATORS[int(rng.integers(len(OPERATORS)))]
    how = "plain" if collective == "barrier" else str(rng.choice(HOW))
    return Call(collective, operator, tuple(rows), dim, int(rng.integers(ranks)), how)


class Stream:
    """An endless stream of calls of a few kinds on one communicator, every result checked.

    How often the next call is of another kind can be said: in a row of one kind ranks run ahead of each other.

    Attributes:
        made: Calls that came through.
    """

    def __init__(
        self, comm: Communicator, seed: int, kinds: int = 6, *, longest: int = 3000, other: float = 1.0
    ) -> None:
        self._comm, self._other = comm, other
        self._rng = np.random.default_rng(seed)
        self._kinds = [draw(self._rng, comm.size, longest=longest) for _ in range(kinds)]
        self._last = self._kinds[0]
        self._ready: dict[Call, PreparedCall] = {}
        self._open: list[tuple[Call, Handle, Value | None]] = []
        self.made = 0

    def step(self) -> tuple[str, Any]:
        """One more call: its collective, and its result where it is through and gives one."""
        rng, comm = self._rng, self._comm
        if rng.random() < self._other:
            self._last = self._kinds[int(rng.integers(len(self._kinds)))]
        call = self._last
        values = call.values(rng)
        want = call.expected(values, comm.rank)
        x = {name: array.copy() for name, array in values[comm.rank].items()}
        if call.how in ("plain", "out"):
            got = call.plainly(comm, x)
        else:
            got = self._prepared(call, x, want)
            if call.how == "handle":
                return call.collective, None
        call.check(got, want)
        self.made += 1
        return call.collective, got

    def settle(self) -> None:
        """Wait for every handle, in different orders on the ranks."""
        for call, handle, want in self._open[:: -1 if self._comm.rank % 2 else 1]:
            call.check(handle.wait(), want)
            self.made += 1
        self._open.clear()

    def _prepared(self, call: Call, x: Value, want: Value | None) -> Any:
        if any(call == other for other, _, _ in self._open) or len(self._open) > 2:
            self.settle()
        if call not in self._ready:
            self._ready[call] = call.prepare(self._comm)
        given = x if call.collective not in ("broadcast", "scatter") or self._comm.rank == call.root else None
        if call.how == "prepared":
            return self._ready[call](given)
        self._open.append((call, self._ready[call].start(given), want))
        return None
