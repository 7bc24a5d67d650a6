"""What a rank adds for LOGSUMEXP: the compiled part, NumPy and torch write the same, on any rows."""

import numpy as np
import pytest

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


def bound(x, sums, result=None, ranks=3):
    shares = LOWERING.bind(x, ranks, sums, result)
    if shares is None:
        pytest.skip("needs the compiled part")
    return shares


@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (5, 0), (400, 7), (100, 128)])
def test_the_compiled_part_writes_what_numpy_does(rows, dim):
    rng = np.random.default_rng([rows, dim])
    x, reference = value(rng, rows, dim)
    ours, theirs = empty(rows, dim, floats), empty(rows, dim, floats)
    plain, result = ({"out": floats((rows, dim)), "lse": floats(rows)} for _ in range(2))
    shares = bound(x, ours, result)
    LOWERING.encode(x, reference, 3, theirs)
    assert shares.send(reference) == LOWERING.exact(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-7 * (name in ("out", "weight")), err_msg=name)
    result["lse"][...] = 77
    assert shares.receive(reference) == LOWERING.exact(theirs)
    if rows and not LOWERING.exact(theirs):
        assert (result["lse"] == 77).all()  # imprecise sums are not read
    ours["lost"][...] = 0
    for name in ("present", "product"):
        ours[name][...] = np.maximum(ours[name], 4096 * (ours[name] > 0))
    assert shares.receive(reference)
    LOWERING.decode(ours, reference, plain)
    np.testing.assert_allclose(result["lse"], plain["lse"], rtol=1e-7)
    assert np.array_equal(result["out"], plain["out"])


@pytest.mark.parametrize(
    ("lse", "largest", "precise"), [(0, 1, True), (-67, 1, False), (90, 1, False), (0, 1e-30, False)]
)
def test_a_share_is_judged_alone(lse, largest, precise):
    x = {"out": np.full((3, 2), 1, np.float32), "lse": np.zeros(3, np.float32)}
    x["lse"][1], x["out"][1] = lse, largest
    sums = empty(3, 2, floats)
    shares = bound(x, sums)
    assert shares.send(np.zeros(3)) is precise
    assert shares.receive(np.zeros(3)) is precise
    assert bool(LOWERING.exact(sums)) is precise
    x["lse"][1] = -np.inf
    assert shares.send(np.zeros(3))


def test_arrays_that_do_not_lie_plainly_are_left_to_numpy():
    x = {"out": np.zeros((4, 6), np.float32)[:, ::2], "lse": np.zeros(4, np.float32)}
    assert LOWERING.bind(x, 2, empty(4, 3, floats), None) is None


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
    x = {"out": floats((4, 3)), "lse": np.zeros(4, np.float32)}
    shares = bound(x, empty(4, 3, floats))
    for wrong in (np.zeros(3), np.zeros(5)):
        with pytest.raises(ValueError, match="expected 32"):
            shares.send(wrong)
        with pytest.raises(ValueError, match="expected 32"):
            shares.receive(wrong)
    for name, shape in (("out", (4, 4)), ("weight", 3), ("product", 5)):
        with pytest.raises(ValueError, match="bytes, expected"):
            LOWERING.bind(x, 2, empty(4, 3, floats) | {name: floats(shape)}, None)
    with pytest.raises(ValueError, match="array 8 has"):
        LOWERING.bind(x, 2, empty(4, 3, floats), {"out": floats((4, 3)), "lse": floats(3)})
    fixed = {"out": floats((4, 3)), "lse": floats(4)}
    fixed["lse"].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        LOWERING.bind(x, 2, empty(4, 3, floats), fixed)


def test_light_weights_and_large_sums_keep_their_digits():
    """A weight of 2^-140 has few digits in float32, and so has the inverse of a sum of 2^126."""
    x = {"out": np.full((1, 8), 1.7 * 2.0**100, np.float32), "lse": np.full(1, -97, np.float32)}
    ours, theirs = empty(1, 8, floats), empty(1, 8, floats)
    result = {"out": floats((1, 8)), "lse": floats(1)}
    shares = bound(x, ours, result)
    LOWERING.encode(x, np.zeros(1), 3, theirs)
    shares.send(np.zeros(1))
    for sums in (ours, theirs):
        np.testing.assert_allclose(sums["out"], np.exp(-97.0) * x["out"].astype(np.float64), rtol=1e-7)
    ours["out"][...], ours["weight"][...] = 1.3 * 2.0**125, 1.7 * 2.0**126
    for name in ("lost", "present", "product"):
        ours[name][...] = 0 if name == "lost" else 4096
    plain = {name: np.empty_like(array) for name, array in result.items()}
    LOWERING.decode(ours, np.zeros(1), plain)
    assert shares.receive(np.zeros(1))
    wanted = ours["out"].astype(np.float64) / ours["weight"][:, None]
    for got in (result, plain):
        np.testing.assert_allclose(got["out"], wanted, rtol=1e-7)
