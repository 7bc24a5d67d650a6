"""Weights relative to a reference, their classes and counts; NumPy and torch alike."""

import numpy as np
import pytest

from topocomm import SUM, Field, OperatorError
from topocomm.operators.sum_lowering import (
    DIGEST_ITEMS,
    MOST_RANKS,
    NEGLIGIBLE,
    SIGNIFICANT,
    BoundShares,
    SumLowering,
    all_exact,
    bound_shares,
    functions,
    sum_layout,
    tail_items,
    weigh,
    wide,
)

LSE = np.array([0, 88, 89, -66, -67, -np.inf, np.nan, np.inf, -800], np.float32)


def test_classes_at_the_edges():
    found = weigh(LSE, 0.0, 1)
    assert found.lost.tolist() == [False, False, True, False, False, False, True, True, False]
    assert found.present.tolist() == [4096, 4096, 1, 4096, 1, 0, 1, 1, 1]
    np.testing.assert_allclose(found.weight, [1, np.exp(88.0), 0, np.exp(-66.0), np.exp(-67.0), 0, 0, 0, 0])
    assert weigh(LSE, 0.0, 2).lost[1]  # two of that size could overflow together


def test_products_have_a_class_of_their_own():
    largest = np.array([1e-30, 0, 1e30, np.nan, 1e38], np.float32)
    found = weigh(np.zeros(5, np.float32), 0.0, 3, largest)
    assert found.product.tolist() == [NEGLIGIBLE, 0, SIGNIFICANT, 0, SIGNIFICANT * (1e38 <= 2**127 / 3)]
    assert found.lost.tolist() == [False, False, False, True, 1e38 > 2**127 / 3]
    empty = weigh(np.full(1, -np.inf, np.float32), 0.0, 3, np.array([np.nan]))
    assert not empty.lost[0] and empty.present[0] == empty.product[0] == empty.weight[0] == 0


def test_more_room_in_float64():
    found = weigh(np.array([700.0, -660.0, -670.0]), 0.0, 4, dtype="float64")
    assert found.present.tolist() == [SIGNIFICANT, SIGNIFICANT, NEGLIGIBLE] and not found.lost.any()


def test_counts_are_the_same_in_any_order():
    rng = np.random.default_rng(0)
    for significant in (0, 1, 2000, MOST_RANKS):
        shares = np.full(MOST_RANKS, NEGLIGIBLE, np.float32)
        shares[:significant] = SIGNIFICANT
        totals = {float(np.add.reduce(rng.permutation(shares), dtype=np.float32)) for _ in range(20)}
        totals |= {float(np.cumsum(rng.permutation(shares), dtype=np.float32)[-1]) for _ in range(20)}
        assert len(totals) == 1
        assert all_exact(np.zeros(1), np.array([*totals])) == (significant > 0)


def test_what_is_exact():
    assert all_exact(np.zeros(2), np.array([0, SIGNIFICANT]))
    assert not all_exact(np.array([0, 1.0]), np.array([0, SIGNIFICANT]))
    assert not all_exact(np.zeros(2), np.array([SIGNIFICANT, 3 * NEGLIGIBLE]))


def test_tensors_are_weighed_alike():
    torch = pytest.importorskip("torch")
    found = weigh(torch.from_numpy(LSE), torch.zeros(9, dtype=torch.float64), 2, torch.full((9,), 3.0))
    for ours, theirs in zip(weigh(LSE, 0.0, 2, np.full(9, 3.0)), found, strict=True):
        np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-15)
    assert functions(torch.ones(1)) is torch and functions(LSE) is np
    assert wide(torch.ones(1)).dtype == torch.float64 and wide(LSE).dtype == np.float64


def doubling(**changed):
    """Sums of numbers, exact below 100, doubled on the way back."""
    return SumLowering(
        "double/1",
        (Field("a", dtype=np.float32),),
        lambda value, reference, ranks, sums: np.copyto(sums["a"], value["value"] + reference),
        lambda sums: (sums["a"] < 100).all(),
        lambda sums, reference, result: np.copyto(result["value"], 2 * sums["a"]),
        **changed,
    )


def test_steps_bound_to_arrays():
    value, sums, result = {"value": np.array([1.0, 2])}, {"a": np.zeros(2)}, {"value": np.zeros(2)}
    near, far = np.full((2, 1), 5.0), np.full((2, 1), 99.0)
    send, receive = bound_shares(doubling(), value, 2, sums, result)
    assert send(near) and sums["a"].tolist() == [6, 7]
    assert receive(near) and result["value"].tolist() == [12, 14]
    assert not send(far) and not receive(far) and result["value"].tolist() == [12, 14]
    assert bound_shares(doubling(), value, 2, sums, None, judged=False).send(far)  # not asked
    assert bound_shares(doubling(), value, 2, sums, None).receive(None) is False
    own = BoundShares(None, None)
    seen = []
    bind = lambda *given: seen.append(given) or (own if given[3] is None else None)  # noqa: E731
    assert bound_shares(doubling(bind=bind), value, 2, sums, None) is own
    assert bound_shares(doubling(bind=bind), value, 2, sums, result) is not own  # it has nothing for these
    assert [len(given) for given in seen] == [4, 4] and seen[0][0] is value and seen[1][2] is sums


def test_blocks_of_a_reduce_scatter_have_one_item_more():
    assert tail_items(scattered=True) == tail_items(scattered=False) + 1 == DIGEST_ITEMS + 1


def test_fields_that_do_not_fit():
    layout = SUM.layout({"value": ((2, 3), np.float32)})
    for fields in (
        (Field("a"),),
        (Field("a", dtype=np.int32),),
        (Field("a", dtype=np.float32), Field("b", dtype=np.float64)),
        (Field("a", ("*rows", "dim"), np.float32),),
        (Field("a", (), np.float32),),
    ):
        lowering = SumLowering("x/1", fields, lambda *_: None, lambda _: True, lambda *_: None)
        with pytest.raises(OperatorError, match="operator 'sum': lower_to_sum: expected fields"):
            sum_layout("sum", lowering, layout)
    own = sum_layout("sum", lowering._replace(fields=(Field("a", dtype=np.float32),)), layout)
    assert own.rows == 6 and own.row_bytes == 4
