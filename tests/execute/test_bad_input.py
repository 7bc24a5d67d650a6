"""What arrays collectives take, and what they refuse: the rules of docs/guide/collectives.md, on every rank alike.

The cases run on threads and, as a program of its own, in the memory that MPI ranks share.
"""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import topocomm
from attention import LOGSUMEXP
from tests.mpi import mpirun
from topocomm import AFFINE, BAND, LOGADDEXP, MAX, MIN, SUM, WELFORD, MismatchError, OperatorError
from topocomm.planning.collectives import CARRYING, COLLECTIVES, FROM_ROOT, TO_ROOT

ROOT = Path(__file__).parents[2]
BASE = np.arange(12.0).reshape(4, 3)
REPEATS = 3
FOLDING = tuple(name for name in COLLECTIVES if name not in CARRYING)


def run(comm, name, x, op=SUM, **options):
    """One collective by its name."""
    operators = [op] if name in FOLDING else []
    return getattr(comm, name)(x, *operators, **options)


def expected(comm, name, values):
    """What this rank gets from sums of the ranks' values, by NumPy."""
    rank, rows = comm.rank, len(values[0]) if values[0].ndim else 0
    part = slice(rows * rank // comm.size, rows * (rank + 1) // comm.size)
    return {
        "allreduce": lambda: sum(values),
        "reduce": lambda: sum(values) if rank == 0 else None,
        "broadcast": lambda: values[0],
        "reduce_scatter": lambda: sum(values)[part],
        "allgather": lambda: np.concatenate(values),
        "gather": lambda: np.concatenate(values) if rank == 0 else None,
        "alltoall": lambda: np.concatenate([x[part] for x in values]),
        "scatter": lambda: values[0][part],
        "scan": lambda: sum(values[: rank + 1]),
        "exscan": lambda: sum(values[:rank]) if rank else np.zeros_like(values[0]),
    }[name]()


def refused(call, *parts):
    """The call is refused, more than once, with these words."""
    for _ in range(REPEATS):
        with pytest.raises(OperatorError) as caught:
            call()
        for part in parts:
            assert part in str(caught.value), (part, str(caught.value))


def still_works(comm):
    """A value that all ranks refuse leaves the communicator open."""
    assert comm.allreduce(np.array([comm.rank]), SUM).tolist() == [sum(range(comm.size))]


LAYOUTS = {
    "every other column": lambda whole: np.repeat(whole, 2, axis=1)[:, ::2],
    "transposed": lambda whole: np.ascontiguousarray(whole.T).T,
    "backwards": lambda whole: whole[::-1].copy()[::-1],
    "read-only": lambda whole: np.frombuffer(whole.tobytes(), whole.dtype).reshape(whole.shape),
    "unaligned": lambda whole: np.frombuffer(b"x" + whole.tobytes(), np.uint8)[1:].view(whole.dtype).reshape(4, 3),
    "subclass": lambda whole: whole.view(np.recarray),
}


def any_layout_is_taken(comm):
    values = [BASE + rank for rank in range(comm.size)]
    for make in LAYOUTS.values():
        x = make(values[comm.rank])
        assert np.array_equal(x, values[comm.rank])
        for name in COLLECTIVES:
            for _ in range(REPEATS):
                np.testing.assert_array_equal(run(comm, name, x), expected(comm, name, values))
        assert np.array_equal(x, values[comm.rank])
    spread = [np.broadcast_to(np.float64(rank), (4, 3)) for rank in range(comm.size)]
    for name in COLLECTIVES:
        np.testing.assert_array_equal(run(comm, name, spread[comm.rank]), expected(comm, name, spread))
        tensor = run(comm, name, torch.tensor(float(comm.rank), dtype=torch.float64).expand(4, 3))
        wanted = expected(comm, name, spread)
        assert (tensor is None) == (wanted is None)
        assert tensor is None or torch.equal(tensor, torch.from_numpy(np.ascontiguousarray(wanted)))


def any_layout_of_out_is_taken(comm):
    values = [BASE + rank for rank in range(comm.size)]
    for name in COLLECTIVES:
        wanted = expected(comm, name, values)
        shape = BASE.shape if wanted is None else wanted.shape
        for _ in range(REPEATS):
            out = np.zeros((*shape[:1], 2 * shape[1]))[:, ::-2]
            given = run(comm, name, values[comm.rank], out=out)
            assert given is (None if wanted is None else out)
            assert wanted is None or np.array_equal(out, wanted)


def out_that_does_not_fit_is_refused(comm):
    x = np.ones(4, np.float32)
    unwritable = np.ones(4, np.float32)
    unwritable.flags.writeable = False
    for name in ("allreduce", "broadcast", "scan", "exscan"):
        for out, part in [
            (unwritable, "out is read-only; give a writable array"),
            (np.ones(5, np.float32), "out must be float32 [4] as prepared, got float32 [5]"),
            (np.ones(4), "got float64 [4]"),
            (torch.ones(4, requires_grad=True), "requires gradients"),
            (torch.ones(4, device="meta"), "is on meta"),
            ([0.0] * 4, "expected an array"),
            ({"wrong": x.copy()}, "expected the fields ['value']; missing 'value'; unknown 'wrong'"),
        ]:
            refused(lambda name=name, out=out: run(comm, name, x, out=out), part)
    assert unwritable.tolist() == [1] * 4
    refused(lambda: comm.allreduce(np.ones(()), SUM, out=np.float64(1)), "NumPy scalar, which cannot be written")
    still_works(comm)


def in_place(comm):
    """out is x itself: the same array, or a view of all of it."""
    values = [BASE + rank for rank in range(comm.size)]
    for name in ("allreduce", "broadcast", "scan", "exscan"):
        for view in (lambda x: x, lambda x: x[:]):
            for _ in range(REPEATS):
                x = values[comm.rank].copy()
                run(comm, name, x, out=view(x))
                np.testing.assert_array_equal(x, expected(comm, name, values))
    wanted = comm.allreduce({"a": BASE, "b": BASE + 1}, AFFINE)
    a, b = BASE.copy(), BASE + 1
    comm.allreduce({"a": a, "b": b}, AFFINE, out={"a": a, "b": b})
    np.testing.assert_array_equal(a, wanted["a"])
    np.testing.assert_array_equal(b, wanted["b"])


def one_array_for_two_fields(comm):
    """Values are only read."""
    x = np.full(4, 2.0)
    both = comm.allreduce({"a": x, "b": x}, AFFINE)
    ranks = comm.size
    assert both["a"].tolist() == [2.0**ranks] * 4
    assert both["b"].tolist() == [2.0 * (2**ranks - 1)] * 4
    assert x.tolist() == [2.0] * 4


def results_are_the_callers_own(comm):
    for name in COLLECTIVES:
        x = np.full(4, comm.rank + 1.0)
        first = run(comm, name, x)
        kept = None if first is None else first.copy()
        assert first is None or not np.shares_memory(first, x)
        for _ in range(REPEATS):
            run(comm, name, x + 7)
        assert first is None or np.array_equal(first, kept)


def empty_values(comm):
    """Arrays without items are values like others; a rank may give no rows to an all-gather."""
    for shape in ((0,), (0, 3), (4, 0)):
        for make in (lambda shape: np.empty(shape, np.float32), lambda shape: torch.empty(shape)):
            x = make(shape)
            for name in COLLECTIVES:
                for _ in range(REPEATS):
                    result = run(comm, name, x)
                    assert name in TO_ROOT or type(result) is type(x)
                    if name in ("allreduce", "broadcast", "scan", "exscan"):
                        assert tuple(result.shape) == shape
    rows = np.full((comm.rank, 2), comm.rank)
    joined = comm.allgather(rows)
    assert joined[:, 0].tolist() == [rank for rank in range(comm.size) for _ in range(rank)]


def values_without_axes(comm):
    """0-d arrays and NumPy scalars give 0-d arrays; what cuts or joins rows refuses them."""
    values = [np.array(rank + 1.0) for rank in range(comm.size)]
    for name in ("allreduce", "reduce", "broadcast", "scan", "exscan"):
        for x in (values[comm.rank], np.float64(comm.rank + 1), torch.tensor(comm.rank + 1.0)):
            result = run(comm, name, x)
            wanted = expected(comm, name, values)
            assert (result is None) == (wanted is None)
            assert wanted is None or (result.shape == () and float(result) == float(wanted))
            assert wanted is None or isinstance(result, torch.Tensor if isinstance(x, torch.Tensor) else np.ndarray)
    refused(lambda: comm.reduce_scatter(np.array(1.0), SUM), "cuts values along axis 0", "give arrays with rows")
    refused(lambda: comm.alltoall(np.array(1.0)), "alltoall cuts values along axis 0", "x.reshape(1)")
    refused(lambda: comm.scatter(np.array(1.0)), "scatter cuts values along axis 0", "x.reshape(1)")
    refused(lambda: comm.allgather(np.array(1.0)), "joins values along axis 0", "x.reshape(1)")
    still_works(comm)


NO_ARRAYS = {"list": [1.0, 2.0], "float": 2.0, "None": None, "str": "ab", "tuple": (np.ones(2),)}


def what_is_no_array_is_refused(comm):
    for kind, x in NO_ARRAYS.items():
        for name in COLLECTIVES:
            refused(lambda name=name, x=x: run(comm, name, x), "expected an array, or a dict", f"got {kind}")
    for name in FOLDING:
        for part in ([1.0], None, 1.0):
            refused(
                lambda name=name, part=part: run(comm, name, {"value": part}),
                f"field 'value': expected a NumPy array or torch tensor, got {type(part).__name__}",
            )
    still_works(comm)


ELSEWHERE = {
    "requires gradients; pass x.detach()": torch.ones(4, requires_grad=True),
    "is on meta; this transport takes CPU tensors: pass x.cpu()": torch.ones(4, device="meta"),
    "pass x.to_dense()": torch.ones(4).to_sparse(),
}


def tensors_of_elsewhere_are_refused(comm):
    """At first use, and, where every rank puts a value in, by a call that is prepared already."""
    for turn in range(2):
        for name in COLLECTIVES if turn == 0 else [n for n in COLLECTIVES if n not in FROM_ROOT]:
            for part, x in ELSEWHERE.items():
                refused(lambda name=name, x=x: run(comm, name, x), part)
            run(comm, name, torch.ones(4))
    still_works(comm)


DTYPES = {
    "object": np.array([1, 2, 3, 4], object),
    "[('a', '<f8'), ('b', '<i4')]": np.zeros(4, [("a", "f8"), ("b", "i4")]),
    "float64 in another byte order": np.ones(4, np.dtype(np.float64).newbyteorder()),
    "bool": np.array([True, False, True, True]),
    "datetime64[s]": np.array([1, 2, 3, 4], "M8[s]"),
    "<U1": np.array(list("abcd")),
}


def dtypes_that_an_operator_does_not_take_are_refused(comm):
    for told, x in DTYPES.items():
        for name in FOLDING:
            refused(lambda name=name, x=x: run(comm, name, x), "operator 'sum' takes integers", f"got {told}; ")
    refused(lambda: comm.allreduce(np.ones(4), BAND), "operator 'band' takes", "got float64")
    refused(lambda: comm.allreduce(np.ones(4, complex), MAX), "operator 'max' takes", "got complex128")
    mixed = {"a": np.ones(4), "b": np.ones(4, np.float32)}
    refused(lambda: comm.scan(mixed, AFFINE), "takes one dtype", "float64", "float32")
    assert comm.allreduce(np.array([comm.rank > 0]), topocomm.BOR).tolist() == [comm.size > 1]
    still_works(comm)


def what_only_carries_takes_every_dtype_but_objects(comm):
    for told, x in DTYPES.items():
        if told == "object":
            continue
        for _ in range(REPEATS):
            moved, joined = comm.broadcast(x, root=comm.size - 1), comm.allgather(x)
            assert moved.dtype == x.dtype
            assert np.array_equal(moved, x)
            assert joined.dtype == x.dtype
            assert np.array_equal(joined, np.concatenate([x] * comm.size))


@dataclasses.dataclass
class Pair:
    a: np.ndarray
    b: np.ndarray


def fields_must_be_the_operators(comm):
    x = np.ones(4)
    for name in FOLDING:
        for value, apart in (({"wrong": x}, "unknown 'wrong'"), ({"value": x, "m": x}, "unknown 'm'"), ({}, "missing")):
            refused(lambda name=name, value=value: run(comm, name, value), "takes the fields ['value']; ", apart)
        refused(lambda name=name: run(comm, name, x, WELFORD), "takes the fields ['count', 'mean', 'm2']")
        refused(lambda name=name: run(comm, name, {"a": x, "b": np.ones(5)}, AFFINE), "leading shape [5]", "[4]")
        mixed = {"a": x, "b": torch.ones(4, dtype=torch.float64)}
        refused(lambda name=name, mixed=mixed: run(comm, name, mixed, AFFINE), "mix torch tensors and NumPy arrays")
    for name in ("broadcast", "allgather"):
        mixed = {"any": x, "other": torch.ones(4)}
        refused(lambda name=name, mixed=mixed: run(comm, name, mixed), "mix torch tensors and NumPy arrays")
    result = comm.allreduce(Pair(x, x), AFFINE)
    assert type(result) is Pair
    assert result.b.tolist() == [comm.size] * 4
    still_works(comm)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 1.0, 1e308, -0.0])


def not_a_number_and_infinities_go_as_ieee_says(comm):
    """Every rank but the first holds one kind of special value in every place of its own."""
    values = [np.full(len(SPECIAL), 1.5), *[np.roll(SPECIAL, rank) for rank in range(1, comm.size)]]
    x = values[comm.rank]
    with np.errstate(all="ignore"):
        for name in COLLECTIVES:
            np.testing.assert_array_equal(run(comm, name, x), expected(comm, name, values))
        np.testing.assert_array_equal(comm.allreduce(x, MAX), np.maximum.reduce(values))
        np.testing.assert_array_equal(comm.allreduce(x, MIN), np.minimum.reduce(values))
        exact = np.logaddexp.reduce(np.array(values, np.longdouble), axis=0).astype(float)
        np.testing.assert_allclose(comm.allreduce(x, LOGADDEXP), exact, rtol=1e-15)


def empty_partials_change_nothing(comm):
    """(0, -inf) is no keys at all: exact, and never NaN; a NaN that is there stays."""
    empty = {"out": np.zeros((2, 3), np.float32), "lse": np.full(2, -np.inf, np.float32)}
    there = {"out": np.array([[1, 2, 3], [np.nan, 4, 5]], np.float32), "lse": np.array([0.5, 0.25], np.float32)}
    last = comm.size - 1
    for _ in range(REPEATS):
        merged = comm.allreduce(there if comm.rank == last else empty, LOGSUMEXP)
        np.testing.assert_array_equal(merged["out"], there["out"])
        np.testing.assert_array_equal(merged["lse"], there["lse"])
        nothing = comm.allreduce(empty, LOGSUMEXP)
        np.testing.assert_array_equal(nothing["out"], empty["out"])
        np.testing.assert_array_equal(nothing["lse"], empty["lse"])


CASES = [
    any_layout_is_taken,
    any_layout_of_out_is_taken,
    out_that_does_not_fit_is_refused,
    in_place,
    one_array_for_two_fields,
    results_are_the_callers_own,
    empty_values,
    values_without_axes,
    what_is_no_array_is_refused,
    tensors_of_elsewhere_are_refused,
    dtypes_that_an_operator_does_not_take_are_refused,
    what_only_carries_takes_every_dtype_but_objects,
    fields_must_be_the_operators,
    not_a_number_and_infinities_go_as_ieee_says,
    empty_partials_change_nothing,
]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_on_threads(case, ranks):
    topocomm.run_local(case, ranks=ranks)


def test_in_shared_memory():
    job = mpirun(2, [__file__], env={"PYTHONPATH": str(ROOT)})
    assert job.returncode == 0, job.stderr[-3000:]
    assert job.stdout.split() == ["0:ok", "1:ok"] or job.stdout.split() == ["1:ok", "0:ok"]


BAD_ON_ONE_RANK = {
    "requires gradients": torch.ones(4, requires_grad=True),
    "is on meta": torch.ones(4, device="meta"),
    "takes the fields": {"wrong": torch.ones(4)},
    "got bool": torch.ones(4, dtype=torch.bool),
    "float64 [4]": torch.ones(4, dtype=torch.float64),
    "float32 [5]": torch.ones(5),
}


@pytest.mark.parametrize("name", FOLDING)
@pytest.mark.parametrize("part", BAD_ON_ONE_RANK)
def test_a_bad_value_of_one_rank_is_an_error_on_all_that_names_it(part, name):
    said = {}

    def work(comm):
        with pytest.raises(MismatchError) as caught:
            run(comm, name, BAD_ON_ONE_RANK[part] if comm.rank == 1 else torch.ones(4))
        said[comm.rank] = str(caught.value)

    topocomm.run_local(work, ranks=3)
    assert sorted(said) == [0, 1, 2]
    for rank, text in said.items():
        assert text.startswith(f"rank {rank}: ranks disagree")
        assert re.search(rf"rank 1(:| refused its arrays:) [^;]*{re.escape(part)}", text), text


def main():
    from mpi4py import MPI

    with topocomm.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
        for case in CASES:
            case(comm)
        sys.stdout.write(f"{comm.rank}:ok\n")


if __name__ == "__main__":
    main()
