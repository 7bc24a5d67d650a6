"""Ranks that claim different things are named on every rank, part by part."""

import re
from functools import partial

import numpy as np
import pytest

from topocomm import (
    MAX,
    SUM,
    Field,
    MismatchError,
    Operator,
    run_local,
)
from topocomm.execute.calls.agreement import RULE_AT, difference


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_ranks_that_differ_are_named_on_every_rank(odd):
    seen = {}

    def body(comm):
        x = np.zeros(5 if comm.rank == odd else 4)
        try:
            comm.allreduce(x, SUM)
        except MismatchError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(MismatchError):
        run_local(body, ranks=4)
    assert sorted(seen) == [0, 1, 2, 3]
    for rank, text in seen.items():
        assert text.startswith(f"rank {rank}: ranks disagree")
        assert f"rank {odd}: float64 [5]" in text
        assert ": float64 [4]" in text


@pytest.mark.parametrize("what", ["dtype", "operator", "collective", "root"])
def test_every_part_of_a_call_is_compared(what):
    def body(comm):
        odd = comm.rank == 2
        x = np.zeros(4, np.float32 if what == "dtype" and odd else np.float64)
        if what == "collective" and odd:
            return comm.broadcast(x)
        if what == "root":
            return comm.reduce(x, SUM, root=1 if odd else 0)
        return comm.allreduce(x, MAX if what == "operator" and odd else SUM)

    part = {"dtype": ": value"}.get(what, what)
    with pytest.raises(MismatchError, match=rf"{part} \(ranks 0-1: .*; rank 2: "):
        run_local(body, ranks=3)


def test_fields_that_differ_alike_are_told_once():
    claims = [{f"field {name!r}": f"int64 [{4 + (rank == 1)}]" for name in "abc"} for rank in range(3)]
    assert difference(claims) == "field 'a' (ranks 0, 2: int64 [4]; rank 1: int64 [5]), likewise fields 'b', 'c'"
    claims[0]["field 'c'"] = "int64 [6]"
    assert "likewise field 'b'" in difference(claims) and "field 'c' (rank 0: int64 [6]; rank 1: " in difference(claims)


def test_an_agreement_before_a_known_call_names_what_differs(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_CHECK", "always")
    values = {"shape": np.zeros(5), "refused": [0.0] * 4}

    def body(comm, what="shape"):
        for turn in range(3):
            comm.allreduce(values[what] if (comm.rank, turn) == (1, 2) else np.zeros(4), SUM)

    with pytest.raises(MismatchError, match=r"(?m)make: value \(rank 0: float64 \[4\]; rank 1: float64 \[5\]\)$"):
        run_local(body, ranks=2)
    with pytest.raises(MismatchError, match=r"(?m)make: rank 1 refused its arrays: expected an .*\(\.\.\.\)$"):
        run_local(partial(body, what="refused"), ranks=2)


RULES = "combine functions"


def minimum(unused, a, b):
    return {"x": np.minimum(a["x"], b["x"])}


def scaled(factor):
    return lambda a, b: {"x": np.maximum(a["x"], b["x"]) * factor}


@pytest.mark.parametrize(
    ("part", "other", "told"),
    [
        ("fields", {"fields": (Field("x", ("n",)),)}, r"x \[\*rows\]; rank 1: x \[n\]"),
        (RULES, {"combine": scaled(2)}, r"\S+/test_agreement.py:\d+ with factor = 1; rank 1: \S+:\d+ with factor = 2"),
        (RULES, {"combine": lambda a, b: {"x": a["x"] + b["x"]}}, r"\S+.py:\d+ with factor = 1; rank 1: \S+.py:\d+"),
        (RULES, {"combine": partial(minimum, {})}, r"\S+.py:\d+ with factor = 1; rank 1: \S+.py:\d+"),
        ("identity", {"identity": 1}, "x 0.0; rank 1: x 1.0"),
        ("identity", {"identity": lambda dtypes: {"x": 2}}, "x 0.0; rank 1: x 2.0"),
        ("commutative", {"commutative": True}, "False; rank 1: True"),
    ],
)
def test_operators_of_one_name_that_differ_are_named(part, other, told):
    def body(comm):
        arguments = {"fields": (Field("x"),), "combine": scaled(1), "identity": 0.0}
        return comm.allreduce(np.ones(3), Operator("own", **arguments | (other if comm.rank == 1 else {})))

    with pytest.raises(MismatchError, match=rf"(?m)make: {part} \(ranks 0, 2: {told}\)$"):
        run_local(body, ranks=3)


def test_functions_of_one_place_that_differ_are_told_by_their_code():
    claims = [{"rule": f"code {rank}", RULE_AT: "rise.py:7"} for rank in range(2)]
    assert difference(claims) == "combine functions (rank 0: rise.py:7, code 0; rank 1: rise.py:7, code 1)"
    claims[1][RULE_AT] = ""
    assert difference(claims) == "combine functions (rank 0: code 0; rank 1: code 1)"
    assert not difference([{"rule": "code 0", RULE_AT: f"{rank}/rise.py:7"} for rank in range(2)])


STATS = Operator("stats", (Field("top", ("k",)),), lambda a, b: {"top": np.maximum(a["top"], b["top"])}, 0)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (lambda comm, x: comm.barrier(), "collective (ranks 0, 2: allreduce stats; rank 1: a barrier)"),
        (lambda comm, x: comm.allgather(x["top"]), "collective (ranks 0, 2: allreduce stats; rank 1: allgather)"),
        (
            lambda comm, x: comm.allreduce(x, STATS, order="canonical"),
            "order (ranks 0, 2: any; rank 1: canonical)",
        ),
        (
            lambda comm, x: comm.prepare("allreduce", like=x, operator=STATS, order="canonical"),
            "order (ranks 0, 2: any; rank 1: canonical)",
        ),
        (
            lambda comm, x: comm.allreduce({"top": [1.0]}, STATS),
            "rank 1 refused its arrays: field 'top': expected a NumPy array or torch tensor, got list; wrap it with "
            "np.asarray(...)",
        ),
    ],
)
def test_what_a_rank_asked_for_is_told_and_nothing_that_follows_from_it(odd, told):
    def body(comm):
        x = {"top": np.ones(5)}
        with pytest.raises(MismatchError) as error:
            odd(comm, x) if comm.rank == 1 else comm.allreduce(x, STATS)
        return str(error.value).partition("make: ")[2]

    assert run_local(body, ranks=3) == [told] * 3


def test_an_operator_made_alike_on_all_ranks_is_one():
    def body(comm):
        identity = 0 if comm.rank == 1 else np.float64(0)  # the same number
        op = Operator("own", (Field("x"),), scaled(1), identity if comm.rank else lambda dtypes: {"x": 0.0})
        return comm.allreduce(np.ones(3), op).tolist()

    assert run_local(body, ranks=3) == [[1.0] * 3] * 3


def test_an_identity_that_raises_stops_no_call_that_needs_none():
    def body(comm):
        return comm.allreduce(np.ones(3), Operator("own", (Field("x"),), scaled(1), lambda dtypes: dtypes["none"]))

    assert run_local(body, ranks=2)[0].tolist() == [1.0] * 3


@pytest.mark.parametrize("other", [None, [2, 2, 2]])
@pytest.mark.parametrize("prepared", [False, True])
def test_rows_that_differ_are_named(other, prepared):
    def body(comm):
        x, rows = np.zeros((6, 2)), [1, 3, 2] if comm.rank == 2 else other
        if prepared:
            return comm.prepare("reduce_scatter", like=x, operator=SUM, rows=rows)
        return comm.reduce_scatter(x, SUM, rows=rows)

    named = r"(?m)make: rows, the same on all ranks \(ranks 0-1: \[2, 2, 2\]; rank 2: \[1, 3, 2\]\)$"
    with pytest.raises(MismatchError, match=named):
        run_local(body, ranks=3)


def test_rows_that_differ_in_calls_known_to_all_ranks_are_named():
    def body(comm):
        x = np.zeros(6)
        for rows in ([2, 2, 2], [1, 3, 2]):
            comm.reduce_scatter(x, SUM, rows=rows)
        return comm.reduce_scatter(x, SUM, rows=[1, 3, 2] if comm.rank == 2 else [2, 2, 2])

    with pytest.raises(MismatchError) as told:
        run_local(body, ranks=3)
    assert re.search(r"all ranks \(rank \d: \[(1, 3, 2|2, 2, 2)\]; rank \d: \[(1, 3, 2|2, 2, 2)\]\)", str(told.value))
