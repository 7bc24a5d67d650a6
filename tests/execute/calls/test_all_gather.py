"""Plain all-gathers: one collective while rows stay, and the right rows on all ranks when those of one change."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.mpi import mpirun
from topocomm import MismatchError, OperatorError, run_local
from topocomm.execute.calls import all_gather, call_cache

ROOT = Path(__file__).parents[3]


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


def part(rank, rows, step=0):
    return np.arange(2.0 * rows).reshape(rows, 2) + 100 * rank + step


def gathered(comm, rows, step=0, out=None):
    """The calls that an all-gather of these rows takes, after a look at its result."""
    before = comm.session.recorder.calls
    result = comm.allgather(part(comm.rank, rows[comm.rank], step), out=out)
    np.testing.assert_array_equal(result, np.concatenate([part(rank, n, step) for rank, n in enumerate(rows)]))
    assert out is None or result is out
    return comm.session.recorder.calls - before


@pytest.mark.parametrize("rows", [[3, 3, 3], [1, 4, 2]])
def test_rows_that_stay_take_one_collective(rows):
    def body(comm):
        first = gathered(comm, rows)
        return first, [gathered(comm, rows, step) for step in range(5)]

    for first, later in run_local(body, ranks=3):
        assert first > 1
        assert later == [1] * 5


@pytest.mark.parametrize("changing", [0, 1, 2])
def test_one_rank_changes_its_rows_between_two_calls(changing):
    def body(comm):
        other = [3 + 2 * (rank == changing) for rank in range(3)]
        return [
            gathered(comm, rows, step) for step, rows in enumerate([[3] * 3, [3] * 3, other, other, other, [3] * 3])
        ]

    counts = run_local(body, ranks=3)
    assert counts[0] == counts[1] == counts[2]
    assert counts[0][1] == 1
    assert counts[0][3:5] == [2, 1], "exchanged once more, then trusted again"


def test_rows_that_change_in_every_call():
    def body(comm):
        random = np.random.default_rng(7)
        table = random.integers(0, 4, (60, 3))
        table[20:40] = table[20]
        return [gathered(comm, rows.tolist(), step) for step, rows in enumerate(table)]

    counts = run_local(body, ranks=3)
    assert counts[0] == counts[1] == counts[2]


def test_short_values_alone_carry_bytes():
    def body(comm):
        rows = all_gather.MOST_BYTES // 17 // 3
        return [gathered(comm, [n] * 3) for n in (rows, rows, rows + 1, rows + 1, rows + 1)]

    for counts in run_local(body, ranks=3):
        assert [counts[i] for i in (1, 3, 4)] == [1, 2, 2]


def test_ranks_without_rows_exchange_them():
    def body(comm):
        return [gathered(comm, [2, 0, 1]) for _ in range(3)]

    assert {tuple(counts[1:]) for counts in run_local(body, ranks=3)} == {(2, 2)}


@pytest.mark.parametrize("change", [False, True])
def test_out_is_written_where_it_fits(change):
    def body(comm):
        out = np.full((9, 2), -1.0)
        gathered(comm, [3] * 3, 0, out)
        once = gathered(comm, [3] * 3, 1, out)
        if not change:
            return once
        rows = [3, 5, 3]
        gathered(comm, rows, 2, np.empty((11, 2)) if comm.rank else None)
        return once

    assert run_local(body, ranks=3) == [1] * 3


def test_the_value_may_lie_in_out_also_when_rows_change():
    def body(comm):
        for rows in ([2, 2], [2, 2], [3, 2], [3, 2], [1, 3]):
            out = np.zeros((sum(rows), 2))
            first = sum(rows[: comm.rank])
            mine = out[first : first + rows[comm.rank]]
            mine[...] = part(comm.rank, rows[comm.rank])
            result = comm.allgather(mine, out=out)
            assert result is out
            np.testing.assert_array_equal(out, np.concatenate([part(rank, n) for rank, n in enumerate(rows)]))
        return True

    assert run_local(body, ranks=2) == [True, True]


@pytest.mark.parametrize("check", ["first", "always", "never"])
def test_out_on_some_ranks_alone(check, monkeypatch):
    monkeypatch.setenv("TOPOCOMM_CHECK", check)

    def body(comm):
        outs = [np.empty((6, 2)) if comm.rank == step % 2 else None for step in range(6)]
        return [gathered(comm, [3] * 2, step, out) for step, out in enumerate(outs)]

    counts = run_local(body, ranks=2)
    assert counts[0] == counts[1]
    assert counts[0][1:] == [2 if check == "always" else 1] * 5


def test_out_that_does_not_fit_on_one_rank_is_an_error_on_all():
    def body(comm):
        gathered(comm, [3] * 2)
        out = np.empty((5 if comm.rank else 6, 2))
        with pytest.raises(OperatorError if comm.rank else MismatchError, match=r"must be float64 \[6, 2\]") as caught:
            comm.allgather(part(comm.rank, 3), out=out)
        return str(caught.value)

    texts = run_local(body, ranks=2)
    assert "rank 1 refused its arrays" in texts[0]


def test_a_value_without_rows_on_one_rank_is_an_error_on_all():
    def body(comm):
        gathered(comm, [3] * 2)
        with pytest.raises(MismatchError, match="joins values along axis 0"):
            comm.allgather(np.float64(1.0) if comm.rank else part(0, 3))
        return True

    assert run_local(body, ranks=2) == [True, True]


def test_a_value_that_requires_gradients_is_refused():
    def body(comm):
        for _ in range(2):
            comm.allgather(torch.zeros(2, 2))
        with pytest.raises(OperatorError if comm.rank else MismatchError, match="requires gradients"):
            comm.allgather(torch.zeros(2, 2, requires_grad=bool(comm.rank)))
        return True

    assert run_local(body, ranks=2) == [True, True]


def test_another_dtype_on_one_rank_is_an_error_on_all():
    def body(comm):
        for _ in range(2):
            gathered(comm, [3] * 2)
        with pytest.raises(MismatchError, match=f"rank {1 - comm.rank}"):
            comm.allgather(part(comm.rank, 3).astype(np.float32 if comm.rank else np.float64))
        return True

    assert run_local(body, ranks=2) == [True, True]


VALUES = {
    "array": lambda rank, rows: part(rank, rows),
    "tensor": lambda rank, rows: torch.from_numpy(part(rank, rows)),
    "bfloat16": lambda rank, rows: torch.full((rows, 3), float(rank), dtype=torch.bfloat16),
    "dict": lambda rank, rows: {"b": part(rank, rows), "a": np.full(rows, rank)},
    "tensors": lambda rank, rows: {"b": torch.ones(rows, 2) * rank, "a": torch.full((rows,), rank)},
    "NamedTuple": lambda rank, rows: Pair(part(rank, rows), np.full((rows, 1), rank, np.int8)),
    "strided": lambda rank, rows: part(rank, 2 * rows)[::2],
}


@pytest.mark.parametrize("kind", VALUES)
def test_every_kind_of_value(kind):
    def body(comm):
        make = VALUES[kind]
        counts = []
        for rows in ([2] * 3, [2] * 3, [2] * 3, [2, 1, 2], [2, 1, 2], [2, 1, 2]):
            before = comm.session.recorder.calls
            result = comm.allgather(make(comm.rank, rows[comm.rank]))
            counts.append(comm.session.recorder.calls - before)
            values = [make(rank, n) for rank, n in enumerate(rows)]
            assert type(result) is type(values[0])
            fields = {"value": result} if hasattr(result, "shape") else result
            fields = fields._asdict() if isinstance(fields, Pair) else fields
            assert "rows changed" not in fields
            for name, array in fields.items():
                parts = [
                    v if hasattr(v, "shape") else v[name] if isinstance(v, dict) else getattr(v, name) for v in values
                ]
                joined = np.concatenate([np.asarray(p.float() if isinstance(p, torch.Tensor) else p) for p in parts])
                assert array.dtype == parts[0].dtype
                np.testing.assert_array_equal(np.asarray(array.float() if torch.is_tensor(array) else array), joined)
        return counts

    for counts in run_local(body, ranks=3):
        assert [counts[i] for i in (1, 2, 5)] == [1, 1, 1]


def test_calls_that_were_dropped_are_made_again(monkeypatch):
    monkeypatch.setattr(call_cache, "MOST_CALLS", 2)

    def body(comm):
        for step in range(3):
            for width in range(1, 5):
                x = np.full((2, width), float(comm.rank + step))
                assert comm.allgather(x)[::2, 0].tolist() == [step, step + 1.0]
        return True

    assert run_local(body, ranks=2) == [True, True]


def test_kinds_of_values_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(all_gather, "MOST_CALLS", 3)

    def body(comm):
        for width in range(1, 8):
            comm.allgather(np.zeros((2, width)))
        return len(comm._all_gather._expected)

    assert run_local(body, ranks=2) == [3, 3]


@pytest.mark.long
def test_rows_between_processes():
    program = ROOT / "tests/execute/mpi_programs/changing_rows.py"
    job = mpirun(3, [program], timeout_s=240.0, env={"PYTHONPATH": str(ROOT)})
    assert job.returncode == 0, job.stderr[-3000:]
    assert "changing rows ok" in job.stdout
