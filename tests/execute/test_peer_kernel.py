"""The peer kernel on ranks that are processes with Triton's interpreter: bits of the plan, waits, credits, epochs."""

import pytest

from tests.execute.peer_ranks import Ranks

pytest.importorskip("torch")  # in the processes that are started

MOST = 4
pytestmark = pytest.mark.long
"""The processes take ten seconds to start."""


@pytest.fixture(scope="module")
def ranks():
    made = Ranks(MOST)
    yield made
    made.close()


DTYPES = {"sum": "f4", "prod": "c8", "max": "bfloat16", "min": "f2", "argmax": "f8", "argmin": "f4", "band": "u1",
          "bor": "i8", "bxor": "?", "logaddexp": "f4", "welford": "f8", "affine": "c16"}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_operator_has_the_bits_of_the_plan(ranks, name):
    ranks.run(3, "collective", name=name, dtype=DTYPES[name], rows=37, calls=2)


@pytest.mark.parametrize(("size", "rows", "dims"), [(2, 1, 1), (3, 5, 17), (4, 3, 129)])
def test_partials_empty_ones_among_them(ranks, size, rows, dims):
    ranks.run(size, "collective", name="attention.logsumexp", rows=rows, dims=dims)


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("reduce", "affine", {"root": 1}),
        ("reduce_scatter", "sum", {"rows": 8, "parts": [5, 0, 3]}),
        ("scan", "welford", {}),
        ("exscan", "affine", {}),
        ("broadcast", "copy", {"root": 2}),
        ("allgather", "copy", {"rows": 7, "parts": [4, 1, 2]}),
        ("gather", "copy", {"rows": 7, "parts": [4, 1, 2], "root": 1}),
        ("scatter", "copy", {"rows": 7, "parts": [4, 1, 2], "root": 2}),
        ("alltoall", "copy", {"rows": 18, "parts": [1, 2, 3, 0, 2, 1, 4, 5, 0]}),
    ],
)
def test_every_collective(ranks, kind, name, more):
    ranks.run(3, "collective", kind=kind, name=name, **more)


@pytest.mark.parametrize("algorithm", ["direct", "ring", "recursive-doubling"])
def test_plans_of_several_stages_and_chunks(ranks, algorithm):
    ranks.run(4, "collective", name="sum", rows=13, algorithm=algorithm)


@pytest.mark.parametrize("programs", [1, 2])
def test_rows_of_many_tiles_in_few_programs(ranks, programs):
    ranks.run(2, "collective", name="argmax", rows=1100, programs=programs, calls=2)


@pytest.mark.parametrize(("size", "rows"), [(1, 5), (1, 0), (2, 0)])
def test_one_rank_and_values_without_rows(ranks, size, rows):
    made = ranks.run(size, "collective", name="sum", rows=rows)
    assert made == [3 if rows else 0] * size  # nothing is launched where there is nothing


@pytest.mark.parametrize(("size", "first"), [(2, 2**31 - 9), (3, 2**32 - 9)])
def test_many_calls_of_all_kinds_with_pauses(ranks, size, first):
    """The epochs go past what 31 and 32 bits hold."""
    ranks.run(size, "epochs", calls=14, seed=size, first=first)


@pytest.mark.parametrize("calls", [50, pytest.param(150, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", range(3))
def test_many_more_calls_with_pauses(ranks, seed, calls):
    ranks.run(2 + seed, "epochs", calls=calls, seed=seed, limit_s=280)


def test_a_rank_that_does_not_come_is_named(ranks):
    told = ranks.run(4, "late", absent=[1, 2], wait_s=0.2)
    assert told[1] is told[2] is None
    for rank in (0, 3):
        assert len(told[rank]) == 2
        for text in told[rank]:
            assert text.startswith(f"rank {rank}: its GPU still waits for ranks 1, 2 after 0.2 s")


def test_only_those_are_named_that_are_awaited(ranks):
    told = ranks.run(3, "late", absent=[1], wait_s=0.2, kind="reduce")  # to rank 0
    assert "for rank 1 after" in told[0][0]
    assert told[2] == []


def test_the_host_ends_a_wait(ranks):
    ranks.run(2, "aborted")


@pytest.mark.parametrize(("kind", "fast"), [("broadcast", [0]), ("reduce", [1, 2])])
def test_a_rank_that_only_sends_is_two_calls_ahead_at_most(ranks, kind, fast):
    most = ranks.run(3, "ahead", kind=kind, calls=10)
    assert all(1 <= most[rank] <= 2 for rank in fast), most
