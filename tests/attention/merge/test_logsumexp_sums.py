"""What a rank adds for LOGSUMEXP: the compiled part, NumPy and torch write the same, on any rows."""

import numpy as np
import pytest

from attention.merge import logsumexp
from attention.merge.logsumexp import LOGSUMEXP, SUM_COLUMNS

LOWERING = LOGSUMEXP.sum_lowering(None)


def value(rng, rows, dim):
    """Rows of all kinds: empty, lost, negligible, huge, tiny and plain ones."""
    lse = rng.choice([0, 5, -20, 80, -80, 500, -500, np.inf, -np.inf, np.nan], rows) + rng.normal(0, 1, rows)
    out = rng.uniform(-3, 3, (rows, dim)) * rng.choice([0, 1, 1e-38, 1e38, 1e-20, np.nan, np.inf], (rows, 1))
    return {"out": out.astype(np.float32), "lse": lse.astype(np.float32)}, rng.normal(0, 3, rows)


def empty(rows, dim, make=np.empty):
    return {"out": make((rows, dim)), **{name: make(rows) for name in SUM_COLUMNS}}


def floats(shape):
    return np.empty(shape, np.float32)


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (5, 0), (400, 7), (100, 128)])
def test_the_compiled_part_writes_what_numpy_does(monkeypatch, rows, dim):
    if logsumexp._native() is None:
        pytest.skip("needs the compiled part")
    rng = np.random.default_rng([rows, dim])
    x, reference = value(rng, rows, dim)
    ours, theirs = empty(rows, dim, floats), empty(rows, dim, floats)
    LOWERING.encode(x, reference, 3, ours)
    decoded = {"out": floats((rows, dim)), "lse": floats(rows)}
    plain = {"out": floats((rows, dim)), "lse": floats(rows)}
    LOWERING.decode(ours, reference, decoded)
    exact = LOWERING.exact(ours)
    monkeypatch.setattr(logsumexp, "_native", lambda: None)
    LOWERING.encode(x, reference, 3, theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-7 * (name in ("out", "weight")), err_msg=name)
    assert exact == LOWERING.exact(theirs)
    LOWERING.decode(ours, reference, plain)
    np.testing.assert_allclose(decoded["lse"], plain["lse"], rtol=1e-7)
    assert np.array_equal(decoded["out"], plain["out"])


def test_tensors_are_written_alike():
    torch = pytest.importorskip("torch")
    x, reference = value(np.random.default_rng(1), 200, 5)
    ours = empty(200, 5, floats)
    LOWERING.encode(x, reference, 2, ours)
    sums = empty(200, 5, lambda shape: torch.empty(shape))
    base = torch.from_numpy(reference)
    LOWERING.encode({name: torch.from_numpy(array) for name, array in x.items()}, base, 2, sums)
    for name, array in ours.items():
        np.testing.assert_allclose(sums[name].numpy(), array, rtol=1e-7 * (name in ("out", "weight")), err_msg=name)
    assert bool(LOWERING.exact(sums)) == bool(LOWERING.exact(ours))
    result = {"out": torch.empty(200, 5), "lse": torch.empty(200)}
    wanted = {"out": floats((200, 5)), "lse": floats(200)}
    LOWERING.decode(sums, base, result)
    LOWERING.decode(ours, reference, wanted)
    np.testing.assert_allclose(result["lse"].numpy(), wanted["lse"], rtol=1e-6)
    np.testing.assert_allclose(result["out"].numpy(), wanted["out"], rtol=1e-6)


def test_lengths_are_checked():
    if logsumexp._native() is None:
        pytest.skip("needs the compiled part")
    native, sums = logsumexp._native(), empty(4, 3, floats)
    columns = [sums[name] for name in SUM_COLUMNS]
    arrays = floats((4, 3)), floats(4), np.zeros(4), sums["out"]
    for index, wrong in ((0, floats((4, 4))), (1, floats(3)), (2, np.zeros(5)), (3, floats((5, 3)))):
        given = [wrong if number == index else array for number, array in enumerate(arrays)]
        with pytest.raises(ValueError, match="bytes, expected"):
            native.encode_shares(*given, *columns, 2)
    with pytest.raises(ValueError, match="unequal"):
        native.shares_exact(floats(3), floats(3), floats(4))
    with pytest.raises(ValueError, match="bytes, expected"):
        native.decode_shares(sums["out"], floats(3), np.zeros(4), floats((4, 3)), floats(4))
