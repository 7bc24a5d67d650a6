"""What is known of the tokens behind a cache, also after passes that were undone or gave no tokens."""

from copy import deepcopy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attention.cache.token_record import MOST_NEW, TokenRecord


def ids(*numbers):
    return torch.tensor([numbers, [100 + n for n in numbers]])


def test_tokens_positions_and_padding_of_their_own_pass():
    record = TokenRecord()
    assert (record.length, record.batch) == (0, 0)
    record.add(0, ids(1, 2, 3), None, torch.tensor([[0, 1, 1], [1, 1, 1]]))
    record.add(3, ids(4), torch.tensor([[2], [3]]), None)
    assert (record.length, record.batch) == (4, 2)
    assert record.ids.tolist() == [[1, 2, 3, 4], [101, 102, 103, 104]]
    assert record.places.tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]
    assert record.mask.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    record.select_batch(torch.tensor([1, 1, 0]))
    assert record.ids[:, 0].tolist() == [101, 101, 1]


def test_a_pass_that_was_undone_is_forgotten():
    record = TokenRecord()
    record.add(0, ids(1, 2, 3), None, None)
    record.add(2, ids(9), None, None)
    assert record.ids[0].tolist() == [1, 2, 9]
    record.add(0, ids(7)[:1], None, None)
    assert record.ids.tolist() == [[7]]


def test_a_gap_stays_a_gap():
    record = TokenRecord()
    record.add(0, ids(1, 2), None, None)
    record.add(2, None, None, None)  # three embeddings
    record.add(5, ids(6), None, None)
    assert record.length == 2
    record.add(2, ids(3), torch.zeros(3, 2, 1), None)  # positions of several kinds
    assert record.length == 2


def test_another_record_joins():
    record, other = TokenRecord(), TokenRecord()
    record.add(0, ids(1, 2), None, None)
    other.add(0, ids(5, 6, 7)[:1], None, None)
    record.join(other)
    record.add(3, torch.tensor([[3], [103], [8]]), torch.tensor([[2], [2], [3]]), None)
    assert record.ids.tolist() == [[1, 2, 0, 3], [101, 102, 0, 103], [5, 6, 7, 8]]
    assert record.mask.tolist() == [[1, 1, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]
    assert record.places[:, -1].tolist() == [2, 2, 3]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.int32])
def test_tokens_one_by_one_are_recorded_as_several_are(dtype):
    one, several = TokenRecord(), TokenRecord()
    tokens, mask = ids(*range(1, 41)), torch.ones(2, 40, dtype=dtype)
    mask[0, :3] = 0
    places = mask.cumsum(1) - 1
    for at in range(40):
        one.add(at, tokens[:, at : at + 1], places[:, at : at + 1], mask[:, : at + 1])
    several.add(0, tokens, places, mask)
    assert torch.equal(one.ids, several.ids)
    assert torch.equal(one.places, several.places)
    assert torch.equal(one.mask, several.mask)
    one.add(40, tokens[:, :1], places[:1, :1], torch.ones(2, 40))  # a mask that does not fit is no mask
    assert one.mask[:, 40].tolist() == [1, 1]


class Operations(TorchDispatchMode):
    """Notes the operations of torch."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("places", [None, [[3]]])
def test_a_decode_step_takes_no_operation_of_torch(batch, places):
    record = TokenRecord()
    record.add(0, ids(1, 2, 3)[:batch], None, None)
    token, given = ids(4)[:batch], None if places is None else torch.tensor(places)
    with Operations() as operations:
        record.add(3, token, given, None)
    assert operations.names == []
    token.zero_()  # the caller's own
    assert record.ids[0].tolist() == [1, 2, 3, 4]
    assert record.places[0].tolist() == [0, 1, 2, 3]
    assert record.mask.tolist() == [[1, 1, 1, 1]] * batch


def test_more_decode_steps_than_are_noted_before_one_tensor_takes_them():
    record, count = TokenRecord(), 2 * MOST_NEW + 3
    record.add(0, ids(0), None, None)
    for at in range(1, count):
        record.add(at, ids(at), None, None)
    assert record.length == count
    copied = deepcopy(record)
    assert record.ids.tolist() == [[*range(count)], [*range(100, 100 + count)]]
    assert torch.equal(copied.ids, record.ids)


@pytest.mark.parametrize("left", [0, 2, 3, 5])
def test_steps_that_are_undone(left):
    record = TokenRecord()
    record.add(0, ids(1, 2, 3), None, None)
    for token in (4, 5, 6):
        record.add(token - 1, ids(token), None, None)
    record.truncate(left)
    assert record.length == left
    record.add(left, ids(9), None, None)
    assert record.ids[0].tolist() == [*range(1, left + 1), 9]
