"""Tensors as calls take them: on their own memory where that is in one piece."""

import pytest

from topocomm import OperatorError

torch = pytest.importorskip("torch")

from topocomm.torch import values  # noqa: E402 - where there is torch


def test_what_is_in_one_piece_is_not_copied():
    x = torch.ones(2, 3, requires_grad=True)
    items = values.flat(x, "x")
    assert items.shape == (6,) and items.data_ptr() == x.data_ptr() and not items.requires_grad
    assert values.flat_target(x, "x").data_ptr() == x.data_ptr()
    assert values.flat(torch.tensor(3), "x").shape == (1,)


def test_what_is_not_is_copied_and_put_back():
    x = torch.arange(6.0).reshape(2, 3).t()
    items = values.flat(x, "x")
    assert items.tolist() == [0, 3, 1, 4, 2, 5] and items.data_ptr() != x.data_ptr()
    values.put(x, items + 1)
    assert x.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert values.flat_target(x, "x").shape == (6,)


def test_conjugates_and_signs_are_resolved():
    x = torch.tensor([1 + 2j]).conj()
    assert values.flat(x, "x").tolist() == [1 - 2j]
    items = values.flat(x.imag, "x")
    assert items.numpy().tolist() == [-2] and not items.is_neg()
    values.put(x.imag, items + 1)
    assert x.tolist() == [1 - 1j]


def test_dtypes_without_a_counterpart_move_as_bytes():
    x = torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(OperatorError, match="float8"):
        values.flat(x, "x")
    items = values.flat_bytes(x, "x")
    assert items.dtype == torch.uint8 and items.data_ptr() == x.data_ptr()
    out = [torch.zeros_like(x[:1]), torch.zeros_like(x[:2])]
    values.put_all(out, items.clone())
    assert torch.equal(torch.cat(out).float(), torch.ones(3))


def test_a_list_is_joined_and_taken_apart():
    tensors = [torch.arange(2), torch.arange(6).reshape(2, 3).t()]
    joined = values.join(tensors, "x")
    assert joined.tolist() == [0, 1, 0, 3, 1, 4, 2, 5]
    values.put_all(tensors, joined * 2)
    assert tensors[1].tolist() == [[0, 6], [2, 8], [4, 10]]


@pytest.mark.parametrize(
    ("tensors", "words"), [([], "empty list"), ([torch.ones(1), torch.ones(1).int()], "torch.float32, torch.int32")]
)
def test_lists_of_one_dtype(tensors, words):
    with pytest.raises(OperatorError, match=words):
        values.same_dtype(tensors, "x")
