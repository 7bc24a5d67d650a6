"""Containers of the user's arrays: told apart, taken apart without copies, and put together again."""

import dataclasses
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from attention import LOGSUMEXP
from topocomm import SUM, Field, Operator, OperatorError
from topocomm.execute.calls.structure import describe, signature, take

TRIPLE = Operator(
    "triple", tuple(Field(name) for name in "abc"), lambda left, right: left, dict.fromkeys("abc", 0), commutative=True
)


class Tuple(NamedTuple):
    a: Any
    b: Any
    c: Any


@dataclasses.dataclass(frozen=True)
class Data:
    c: Any
    b: Any
    a: Any


class Sub(np.ndarray):
    pass


CONTAINERS = {
    "dict": lambda a, b, c: {"a": a, "b": b, "c": c},
    "dict in another order": lambda a, b, c: {"c": c, "a": a, "b": b},
    "ordered dict": lambda a, b, c: OrderedDict(a=a, b=b, c=c),
    "mapping proxy": lambda a, b, c: MappingProxyType({"b": b, "a": a, "c": c}),
    "NamedTuple": Tuple,
    "dataclass": lambda a, b, c: Data(a=a, b=b, c=c),
}
ARRAYS = {
    "NumPy": lambda number: np.full((2, 3), number, np.float32),
    "0-d": lambda number: np.array(number, np.int64),
    "no rows": lambda number: np.zeros((0, number), np.float64),
    "torch": lambda number: torch.full((2, 3), number, dtype=torch.float32),
}


@pytest.fixture(params=CONTAINERS)
def container(request):
    return CONTAINERS[request.param]


@pytest.fixture(params=ARRAYS)
def made(request):
    return [ARRAYS[request.param](number) for number in (1, 2, 3)]


def parts(value):
    """What a container holds, by name in its own order."""
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return dict(value) if not isinstance(value, tuple) else value._asdict()


def test_fields_are_taken_by_name_and_share_memory(container, made):
    value = container(*made)
    structure = describe(TRIPLE, value)
    assert structure.names == ("a", "b", "c")
    fields = take(value, structure.names)
    assert set(fields) == {"a", "b", "c"}
    for name, given in zip("abc", made, strict=True):
        assert type(fields[name]) is np.ndarray
        assert fields[name].__array_interface__["data"][0] == np.asarray(given).__array_interface__["data"][0]
        assert np.array_equal(fields[name], given)


def test_results_come_in_the_same_container_without_a_copy(container, made):
    value = container(*made)
    structure = describe(TRIPLE, value)
    fresh = {name: np.array(np.asarray(array) + 10) for name, array in zip("abc", made, strict=True)}
    given = structure.give(fresh)
    kind = dict if isinstance(value, MappingProxyType | OrderedDict) else type(value)
    assert type(given) is kind
    assert list(parts(given)) == list(parts(value))
    for name, array in fresh.items():
        part = parts(given)[name]
        assert isinstance(part, type(made[0]))
        assert np.shares_memory(np.asarray(part), array) or not array.size
        assert np.array_equal(np.asarray(part), array)
        if array.size:
            array[...] = 7
            assert np.array_equal(np.asarray(part), array)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.arange(6.0).reshape(2, 3)[:, ::2], np.ndarray),
        (np.float32(4), np.ndarray),
        (np.array(5), np.ndarray),
        (np.arange(4).view(Sub), np.ndarray),
        (np.ma.masked_array([1.0, 2.0]), np.ndarray),
        (torch.arange(6).reshape(2, 3).T, torch.Tensor),
        (torch.tensor(2.5), torch.Tensor),
    ],
    ids=["strided", "scalar", "0-d", "subclass", "masked", "transposed tensor", "0-d tensor"],
)
def test_a_bare_array_is_the_only_field(value, kind):
    structure = describe(SUM, value)
    (array,) = take(value, structure.names).values()
    assert type(array) is np.ndarray
    assert (array.shape, str(array.dtype)) == (tuple(value.shape), str(value.dtype).removeprefix("torch."))
    assert np.array_equal(array, np.asarray(value))
    assert np.shares_memory(array, np.asarray(value)) or isinstance(value, np.generic)
    fresh = {"value": np.ones(array.shape, array.dtype)}
    assert isinstance(structure.give(fresh), kind)
    assert np.array_equal(np.asarray(structure.give(fresh)), fresh["value"])


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_bfloat16_is_that_of_ml_dtypes_both_ways(shape):
    tensor = torch.arange(6).reshape(2, 3).to(torch.bfloat16).resize_(shape) if shape else torch.tensor(2.5).bfloat16()
    structure = describe(SUM, tensor)
    (array,) = take(tensor, structure.names).values()
    assert (array.dtype, array.shape) == (ml_dtypes.bfloat16, shape)
    assert np.array_equal(array.astype(np.float32), tensor.float().numpy())
    array[...] = 7
    assert torch.all(tensor == 7)
    fresh = {"value": np.full(shape, 3, ml_dtypes.bfloat16)}
    given = structure.give(fresh)
    assert (given.dtype, tuple(given.shape)) == (torch.bfloat16, shape)
    given.fill_(5)
    assert np.all(fresh["value"] == 5)


def test_strided_bfloat16_shares_memory():
    tensor = torch.zeros(4, 3, dtype=torch.bfloat16).T
    (array,) = take(tensor, ("value",)).values()
    array[1, 2] = 4
    assert tensor[1, 2] == 4


def test_a_plain_dict_in_order_goes_through_untouched():
    value = {"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}
    structure = describe(TRIPLE, value)
    assert structure.rebuild is None
    assert structure.give(value) is value


A = np.zeros((2, 3), np.float32)
OTHERS = {
    "shape": A[:1],
    "axes": A[None],
    "dtype": A.astype(np.float64),
    "library": torch.from_numpy(A),
}


@pytest.mark.parametrize("build", [lambda x: x, *(lambda x, make=make: make(A, x, A) for make in CONTAINERS.values())])
@pytest.mark.parametrize("what", OTHERS)
def test_values_that_differ_have_other_signatures(build, what):
    assert signature(build(A)) == signature(build(A.copy()))
    assert hash(signature(build(A))) == hash(signature(build(A.copy())))
    assert signature(build(A)) != signature(build(OTHERS[what]))


def test_containers_have_signatures_of_their_own():
    made = [signature(make(A, A, A)) for make in CONTAINERS.values()]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("operator", "value", "message"),
    [
        (LOGSUMEXP, A, "operator 'attention.logsumexp' takes the fields ['out', 'lse'], got one bare array"),
        (LOGSUMEXP, torch.zeros(2), "takes the fields ['out', 'lse'], got one bare array"),
        (LOGSUMEXP, {"out": A}, "operator 'attention.logsumexp' takes the fields ['out', 'lse']; missing 'lse'"),
        (LOGSUMEXP, {"out": A, "LSE": A}, "takes the fields ['out', 'lse']; unknown 'LSE', did you mean 'lse'?"),
        (
            LOGSUMEXP,
            Tuple(A, A, A),
            "takes the fields ['out', 'lse']; missing 'out', 'lse'; unknown 'a'; unknown 'b'; unknown 'c'",
        ),
        (TRIPLE, {"a": A, "b": A, "c": A, "d": A}, "takes the fields ['a', 'b', 'c']; unknown 'd'"),
        (TRIPLE, {}, "takes the fields ['a', 'b', 'c']; missing 'a', 'b', 'c'"),
        (TRIPLE, Tuple(A, torch.zeros(2), A), "the fields mix torch tensors and NumPy arrays; give all as one kind"),
        *(
            (SUM, value, f"expected an array, or a dict, NamedTuple or dataclass of arrays, got {kind}")
            for value, kind in (([1.0], "list"), (3.0, "float"), (None, "None"), ((A, A), "tuple"), (Data, "type"))
        ),
    ],
)
def test_values_that_do_not_fit_are_told(operator, value, message):
    with pytest.raises(OperatorError) as told:
        describe(operator, value)
    assert message in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (torch.zeros(2, requires_grad=True), "field 'b' requires gradients; pass x.detach()"),
        (torch.zeros(2, device="meta"), "field 'b' is on meta; this transport takes CPU tensors: pass x.cpu()"),
        (torch.zeros(2, dtype=torch.float8_e5m2), "field 'b': NumPy has no torch.float8_e5m2 ("),
        (torch.zeros(2).to_sparse(), "field 'b' is sparse (torch.sparse_coo); pass x.to_dense()"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "field 'b' is conjugated or negated when it is read; pass x."),
        (torch.zeros(2, dtype=torch.complex64).conj().imag, "pass x.resolve_conj().resolve_neg()"),
    ],
    ids=["gradients", "device", "float8", "sparse", "conjugated", "negated"],
)
def test_tensors_that_cannot_travel_are_told(container, part, message):
    whole = torch.zeros(2)
    value = container(whole, part, whole)
    structure = describe(TRIPLE, value)
    with pytest.raises(OperatorError) as told:
        take(value, structure.names)
    assert message in str(told.value)
    with pytest.raises(OperatorError, match=message.split("'b'")[-1].split("(")[0].strip(" :;")):
        take(part, ("value",))


@pytest.mark.parametrize("part", [[1.0, 2.0], 3, "text", None])
def test_a_part_that_is_no_array_is_told(part):
    with pytest.raises(OperatorError) as told:
        take({"a": A, "b": part, "c": A}, ("a", "b", "c"))
    wrap = "; wrap it with np.asarray(...)" if isinstance(part, (list, int)) else ""
    assert str(told.value) == f"field 'b': expected a NumPy array or torch tensor, got {type(part).__name__}{wrap}"


def test_scalars_of_numpy_are_arrays_of_no_axes():
    fields = take(Tuple(np.float32(1), np.int64(2), np.array(3)), ("a", "b", "c"))
    assert [(array.shape, array.dtype) for array in fields.values()] == [((), "f4"), ((), "i8"), ((), "i8")]
