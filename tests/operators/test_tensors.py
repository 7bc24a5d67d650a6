"""`combine` on torch tensors that share memory with the chunks."""

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.operators.packed import fold
from topocomm import SUM, Field, Operator, OperatorError
from topocomm.operators.tensors import as_array

SEEN = []


def combine(a, b):
    SEEN.append(type(a["x"]))
    return {"x": torch.logaddexp(a["x"], b["x"]) if isinstance(a["x"], torch.Tensor) else np.logaddexp(a["x"], b["x"])}


PLAIN = Operator("plain", (Field("x", ("*rows", "n")),), combine, {"x": -np.inf}, commutative=True)


def layout_of(dtype, leading=(4,)):
    return PLAIN.layout({"x": ((*leading, 3), dtype)})


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("leading", [(4,), (), (0,), (2, 2)])
@pytest.mark.parametrize(("count", "into"), [(1, None), (2, 0), (2, 1), (4, 0)])
def test_tensors_come_to_combine(dtype, leading, count, into):
    SEEN.clear()
    layout = layout_of(dtype, leading)
    values = [{"x": np.full((*leading, 3), i).astype(dtype)} for i in range(count)]
    made = fold(PLAIN, layout, values, into=into, tensors=True)["x"]
    assert made.dtype == dtype
    np.testing.assert_allclose(made.astype(float), np.log(np.exp(np.arange(count)).sum()), rtol=0.02)
    assert set(SEEN) == ({torch.Tensor} if count > 1 else set())
    fold(PLAIN, layout, values[:2])
    assert SEEN[-1:] in ([np.ndarray], [])


def test_arrays_of_all_kinds_of_tensors():
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        x = torch.ones(2, 3, dtype=dtype).t()
        for tensor in (x, x.contiguous(), x[:0]):
            array = as_array(tensor)
            assert array.shape == tensor.shape and (array == 1).all()
            assert array.size == 0 or array.ctypes.data == tensor.data_ptr()
        with pytest.raises(RuntimeError, match="neg"):
            as_array(torch._neg_view(x) if dtype.is_floating_point else x.to(torch.complex64).conj().imag)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(RuntimeError, match="grad"):
            as_array(torch.ones(2, dtype=dtype, requires_grad=True))


def test_versions_tell_the_libraries_apart():
    layout = layout_of(np.float32)
    assert PLAIN.fold_version(layout) == "numpy"
    assert PLAIN.fold_version(layout, tensors=True) == "torch"
    whole = SUM.default_layout(3)
    assert SUM.fold_version(whole, tensors=True) == SUM.fold_version(whole)


def test_combine_may_return_arrays():
    plain = Operator("arrays", (Field("x"),), lambda a, b: {"x": a["x"].numpy() + b["x"].numpy()}, {"x": 0})
    layout = plain.layout({"x": ((3,), np.float32)})
    made = fold(plain, layout, [{"x": np.arange(3.0)}, {"x": np.ones(3)}], tensors=True)
    np.testing.assert_array_equal(made["x"], [1, 2, 3])


def test_dtypes_that_torch_lacks_and_results_that_do_not_fit_are_told():
    with pytest.raises(OperatorError, match="operator 'plain': torch has no datetime64"):
        fold(PLAIN, layout_of("M8[s]"), [{"x": np.zeros((4, 3), "M8[s]")}] * 2, tensors=True)
    odd = Operator("odd", (Field("x", dtype=np.int64),), lambda a, b: {"x": a["x"] / b["x"]}, {"x": 1})
    ones = [{"x": np.ones(2, np.int64)}] * 2
    with pytest.raises(OperatorError, match=r"operator 'odd': combine made field 'x' torch.float32, not torch.int64"):
        fold(odd, odd.layout({"x": ((2,), np.int64)}), ones, tensors=True)
    summed = Operator("summed", (Field("x"),), lambda a, b: {"x": (a["x"] + b["x"]).sum()}, {"x": 0})
    with pytest.raises(OperatorError, match=r"operator 'summed': combine made field 'x' of shape \[\], not \[3\]"):
        fold(summed, summed.layout({"x": ((3,), np.float32)}), [{"x": np.ones(3)}] * 2, tensors=True)
