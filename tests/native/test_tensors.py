"""Arrays on the memory of torch's tensors: what is taken, and what is left to torch."""

import gc
import sys

import numpy as np
import pytest

from topocomm.native import _native
from topocomm.operators.tensors import BFLOAT16, NUMBERS, tensor_view

torch = pytest.importorskip("torch")
if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip("torch of 2.10 and later gives out DLPack's functions", allow_module_level=True)

VIEW, OF_NUMBERS = tensor_view(), tensor_view(bools=False)
REAL = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
REAL += ["float16", "float32", "float64", "bfloat16", "bool"]
CONJUGATE = torch.tensor([1 + 2j, 3 + 4j]).conj()
ODD = {
    "no tensor": np.ones(2, np.float32),
    "nothing": None,
    "a subclass": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "gradients": torch.ones(2, requires_grad=True),
    "empty": torch.ones(0),
    "strided": torch.ones(6)[::2],
    "turned": torch.ones(2, 3).t(),
    "repeated": torch.ones(1).expand(3),
    "complex": torch.ones(2, dtype=torch.complex64),
    "float8": torch.ones(2).to(torch.float8_e4m3fn),
    "a sign not applied": torch._neg_view(torch.ones(2)),
    "the sign of one item": CONJUGATE.imag[0],
    "sparse": torch.ones(2).to_sparse(),
    "no memory": torch.ones(2, device="meta"),
}


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", [(), (1,), (4, 2), (2, 1, 3)])
def test_arrays_lie_on_the_memory_of_tensors(dtype, shape):
    x = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    for flat, wanted in [(False, shape), (True, (x.numel(),))]:
        array = VIEW(x, flat)
        assert array.dtype == (BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype)) and array.shape == wanted
        assert array.flags.carray and not array.flags.owndata
        assert array.astype(float).reshape(shape).tolist() == x.double().tolist()
        array[...] = 1
        assert torch.equal(x, torch.ones_like(x))


def test_pieces_of_a_tensor_and_columns_of_one_are_plain():
    x = torch.arange(12.0).reshape(4, 3)
    assert VIEW(x[1:3], False).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert VIEW(x[:, :1][2:3], True).tolist() == [6]


@pytest.mark.parametrize("what", ODD)
def test_what_is_not_plain_is_left_to_torch(what):
    assert VIEW(ODD[what], False) is None and VIEW(ODD[what], True) is None


def test_bools_can_be_left_out():
    assert OF_NUMBERS(torch.ones(2, dtype=torch.bool), True) is None
    assert OF_NUMBERS(torch.ones(2), True).tolist() == [1, 1]


def test_memory_where_items_are_not_aligned_is_told():
    assert not VIEW(torch.frombuffer(bytearray(9), dtype=torch.float32, offset=1), False).flags.aligned


def test_an_array_holds_its_tensor_and_nothing_else():
    x = torch.zeros(3)
    float32 = np.dtype(np.float32)
    gc.collect()
    before = sys.getrefcount(x), sys.getrefcount(float32)
    kept = [VIEW(x, flat) for flat in (False, True) for _ in range(50)]
    assert sys.getrefcount(x) == before[0] + 100
    del x
    gc.collect()
    kept[0][...] = 5
    assert kept[99].tolist() == [5, 5, 5]
    del kept
    y = torch.zeros(3)
    for odd in ODD.values():
        assert VIEW(odd, True) is None
    count = sys.getrefcount(y)
    for _ in range(50):
        VIEW(y, True)
    assert sys.getrefcount(y) == count and abs(sys.getrefcount(float32) - before[1]) < 50


def test_what_does_not_fit_is_refused():
    given = torch.Tensor, torch.Tensor.__dlpack_c_exchange_api__, torch.strided, torch.Tensor.is_neg
    with pytest.raises(ValueError, match="given twice: 2, 32"):
        _native.bind_view(*given, (NUMBERS[-3], NUMBERS[-3]))
    with pytest.raises(ValueError, match=r"5, 64"):
        _native.bind_view(*given, ((5, 64, np.dtype(np.complex64)),))
    with pytest.raises(ValueError, match="PyCapsule"):
        _native.bind_view(torch.Tensor, None, *given[2:], ())
    with pytest.raises(TypeError, match="got 1 arguments"):
        VIEW(torch.ones(1))
