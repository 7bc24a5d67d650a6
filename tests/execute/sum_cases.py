"""Reductions as one SUM beside the formula in float64 and the planned way, on the ranks of any communicator."""

import math

import numpy as np

from attention import LOGSUMEXP
from attention.merge.logsumexp import SUM_COLUMNS
from tests.attention.merging import exact
from topocomm import LOGADDEXP, Field, Operator
from topocomm.extend import SumLowering

BOUND = 2e-6
"""Error of a merge of up to 9 ranks: of out relative to the mean of magnitudes, of lse relative, absolute below 1."""
ROWS, DIM = (2, 3), 5
CASES = {
    # name: (spread of lse, magnitude of out, change of the reference)
    "alike": (1, 1, 0),
    "spread": (80, 1, 0),
    "reference below": (2, 1, -60),
    "reference above": (2, 1, 50),
    "reference far below": (2, 1, -90),
    "reference far above": (2, 1, 75),
    "huge out": (2, 1e30, 0),
    "huge out overflows": (2, 1e38, -10),
    "tiny out": (2, 1e-20, 0),
    "tiny out vanishes": (2, 1e-37, 0),
    "empty": (2, 1, 0),
    "NaN": (2, 1, 0),
    "+inf": (2, 1, 0),
    "NaN in out": (2, 1, 0),
    "NaN in an empty row": (2, 1, 0),
    "out is 0": (2, 0, 0),
    "out is 0, reference far above": (2, 0, 75),
    "no reference": (2, 1, -np.inf),
}


def partials(name, ranks):
    """The partials of all ranks, and the reference."""
    spread, magnitude, change = CASES[name]
    rng = np.random.default_rng([ranks, list(CASES).index(name)])
    values = []
    for rank in range(ranks):
        lse = rng.uniform(-spread, spread, ROWS).astype(np.float32)
        out = (magnitude * rng.choice([-1, 1], (*ROWS, DIM)) * rng.uniform(0.5, 1, (*ROWS, DIM))).astype(np.float32)
        if name == "empty":
            empty = rng.random(ROWS) < 0.5
            empty[0, 0] = True
            lse[empty], out[empty] = -np.inf, 0
        if rank == ranks - 1:
            at = {"NaN": np.nan, "+inf": np.inf, "NaN in an empty row": -np.inf}
            lse[1, 1] = at.get(name, lse[1, 1])
            out[1, 1] = np.nan if name.startswith("NaN in") else out[1, 1]
        values.append({"out": out, "lse": lse})
    top = np.max([np.nan_to_num(v["lse"], nan=0, posinf=0, neginf=-5) for v in values], axis=0)
    return values, top.astype(np.float64) + change


def repeats(values, reference):
    """Whether docs/concepts/sums.md says that the planned way is taken: row by row, one number after the other."""
    return _repeats(values, reference, len(values))


def _repeats(values, reference, ranks):
    for row in np.ndindex(ROWS):
        weights, products = [], []
        for v in values:
            lse, largest = float(v["lse"][row]), float(np.abs(v["out"][row]).max())
            if lse == -math.inf:
                continue
            gap = lse - float(reference[row])
            weight = math.exp(gap) if gap < 700 else math.inf if gap >= 700 else math.nan
            fits = weight <= 2.0**127 / ranks and weight * largest <= 2.0**127 / ranks
            if not fits:
                return True
            weights.append(weight)
            products += [weight * largest] if largest else []
        if (weights and max(weights) < 2.0**-96) or (products and max(products) < 2.0**-96):
            return True
    return False


def repeats_scattered(values, reference):
    """The same of a reduce-scatter: where any rank's shares alone would not be precise."""
    return any(_repeats([value], reference, len(values)) for value in values)


def close(got, values):
    """Whether a merge is within the bound."""
    wanted = exact(values)
    sizes = exact([{"out": np.abs(v["out"]), "lse": v["lse"]} for v in values])["out"]
    empty = wanted["lse"] == -np.inf
    off = np.abs(got["out"].astype(np.float64) - wanted["out"])
    with np.errstate(invalid="ignore"):
        off_lse = np.abs(got["lse"] - wanted["lse"]) / np.maximum(1, np.abs(wanted["lse"]))
    rows = bool(np.all(off <= BOUND * sizes.max(-1, keepdims=True))) and bool(np.all(off_lse[~empty] <= BOUND))
    return rows and np.array_equal(got["lse"] == -np.inf, empty) and not got["out"][empty].any()


def same(got, wanted):
    return all(np.array_equal(got[name], wanted[name], equal_nan=True) for name in wanted)


def bindable():
    """Arguments of `SumLowering.bind` for one row of LOGSUMEXP."""
    value = {"out": np.zeros((1, DIM), np.float32), "lse": np.zeros(1, np.float32)}
    sums = {"out": np.zeros((1, DIM), np.float32)} | {name: np.zeros(1, np.float32) for name in SUM_COLUMNS}
    return value, 1, sums, None


def check_partials(comm, names=tuple(CASES)):
    """LOGSUMEXP; returns for each case whether the call was repeated."""
    taken = {}
    like, _ = partials("alike", comm.size)
    call = comm.prepare_sum(like=like[0], operator=LOGSUMEXP)
    for name in names:
        values, reference = partials(name, comm.size)
        x, before = values[comm.rank], call.repeated
        sent = {key: array.copy() for key, array in x.items()}
        out = {"out": np.empty_like(x["out"]), "lse": np.empty_like(x["lse"])}
        got = call(x, reference=reference, out=out)
        taken[name] = call.repeated > before
        assert got is out and same(x, sent), name
        assert taken[name] == repeats(values, reference), name
        assert same(got, comm.allreduce(x, LOGSUMEXP)) if taken[name] else close(got, values), name
        copied = {key: array.copy() for key, array in x.items()}
        assert same(call(copied, reference=reference, out=copied), got), name
    return taken


def check_scattered(comm, names=tuple(CASES)):
    """LOGSUMEXP by a reduce-scatter, in parts as equal as can be and all to the last rank; what was repeated."""
    taken, ranks, rank, n = {}, comm.size, comm.rank, ROWS[0]
    for rows in (None, [n * (peer == ranks - 1) for peer in range(ranks)]):
        like = partials("alike", ranks)[0][0]
        call = comm.prepare_sum(like=like, operator=LOGSUMEXP, collective="reduce_scatter", rows=rows)
        end = (rank + 1) * n // ranks if rows is None else n
        first = rank * n // ranks if rows is None else n - rows[rank]
        for name in names:
            values, reference = partials(name, ranks)
            x, before = values[rank], call.repeated
            own = [{key: array[first:end] for key, array in value.items()} for value in values]
            out = {key: np.empty_like(array) for key, array in own[0].items()}
            got = call(x, reference=reference, out=out)
            taken[name] = call.repeated > before
            assert got is out and taken[name] == repeats_scattered(values, reference), name
            assert same(got, comm.reduce_scatter(x, LOGSUMEXP, rows=rows)) if taken[name] else close(got, own), name
            assert same(call(x, reference=reference), got), name
    return taken


def check_logarithms(comm):
    """LOGADDEXP of every float."""
    for dtype in ("float16", "float32", "float64"):
        values = [np.random.default_rng(rank).uniform(-9, 9, 7).astype(dtype) for rank in range(comm.size)]
        values[0][2], values[0][3] = -np.inf, -np.inf
        for value in values:
            value[3] = -np.inf
        call = comm.prepare_sum(like=values[0], operator=LOGADDEXP)
        got = call(values[comm.rank], reference=3.0)
        assert got.dtype == dtype and not call.repeated
        wanted = np.logaddexp.reduce([value.astype(np.float64) for value in values])
        np.testing.assert_allclose(got, wanted, rtol=float(np.finfo(dtype).eps), atol=8 * float(np.finfo(dtype).eps))
        assert np.array_equal(call(values[comm.rank], reference=1e4), comm.allreduce(values[comm.rank], LOGADDEXP))
        assert call.repeated == 1


def _encode(value, reference, ranks, sums):
    sums["weight"][...] = value["weight"]
    sums["moment"][...] = value["weight"] * value["mean"]


def _decode(sums, reference, result):
    result["weight"][...] = sums["weight"]
    result["mean"][...] = sums["moment"] / np.where(sums["weight"] == 0, 1, sums["weight"])


def _combine(left, right):
    weight = left["weight"] + right["weight"]
    total = left["weight"] * left["mean"] + right["weight"] * right["mean"]
    return {"weight": weight, "mean": total / np.where(weight == 0, 1, weight)}


MEAN = Operator(
    "weighted_mean",
    (Field("weight", dtype=np.float64), Field("mean", dtype=np.float64)),
    _combine,
    {"weight": 0.0, "mean": 0.0},
    commutative=True,
    lower_to_sum=lambda layout: SumLowering(
        "mean/1",
        (Field("weight", dtype=np.float64), Field("moment", dtype=np.float64)),
        _encode,
        lambda sums: True,
        _decode,
        takes_reference=False,
    ),
)


def check_means(comm):
    """An operator of a program's own, without a reference."""
    x = {"weight": np.arange(3.0) + comm.rank, "mean": np.full(3, 2.0 * comm.rank)}
    got = comm.prepare_sum(like=x, operator=MEAN)(x)
    weights = np.arange(3.0)[:, None] + np.arange(comm.size)
    np.testing.assert_allclose(got["weight"], weights.sum(1))
    np.testing.assert_allclose(got["mean"], (weights * 2 * np.arange(comm.size)).sum(1) / np.maximum(weights.sum(1), 1))


def check_all(comm):
    """Everything; returns how values were added, and what was repeated."""
    call = comm.prepare_sum(like=np.zeros(1, np.float32), operator=LOGADDEXP)
    taken = check_partials(comm)
    check_scattered(comm)
    check_logarithms(comm)
    check_means(comm)
    return call.moved_by, taken
