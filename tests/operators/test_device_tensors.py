"""`combine` on tensors of a device."""

import ml_dtypes
import numpy as np
import pytest
import torch

from topocomm import LOGADDEXP, TOPK, Field, Operator, OperatorError
from topocomm.operators.tensors import device_fold, device_views

PLAIN = Operator(
    "plain", (Field("x", ("*rows", "n")), Field("w")), lambda a, b: {f: a[f] + b[f] for f in a}, {"x": 0, "w": 0}
)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.complex64])
def test_views_are_those_of_the_layout(dtype):
    layout = PLAIN.layout({"x": ((3, 5), dtype), "w": ((3,), np.float64)})
    buffer = torch.randint(0, 256, (layout.packed_bytes(3) + 64,), dtype=torch.uint8)
    tensors, arrays = device_views(layout, buffer, 16, 3), layout.views(buffer.numpy(), 16, 3)
    for name, array in arrays.items():
        assert tensors[name].shape == array.shape
        assert tensors[name].view(torch.uint8).numpy().tobytes() == array.tobytes()
        assert tensors[name].data_ptr() == array.ctypes.data


def test_the_fold_goes_from_left_to_right_into_the_target():
    words = Operator("last", (Field("x"),), lambda a, b: {"x": 2 * a["x"] + b["x"]}, {"x": 0})
    target = torch.zeros(3)
    device_fold(words.name, words.combine, [{"x": torch.full((3,), float(i))} for i in (1, 2, 3)])({"x": target})
    assert target.tolist() == [11, 11, 11]


def test_dtypes_that_torch_lacks_are_told():
    layout = PLAIN.layout({"x": ((3, 5), "M8[s]"), "w": ((3,), np.float64)})
    with pytest.raises(OperatorError, match=r"field 'x': torch has no datetime64\[s\]"):
        device_views(layout, torch.zeros(512, dtype=torch.uint8), 0, 3)


def test_a_combine_of_arrays_only_is_told_apart():
    values = [{"value": torch.zeros(3, device="meta")} for _ in range(2)]
    wanted = "logaddexp has no combine on tensors"
    with pytest.raises(OperatorError, match=wanted):
        device_fold(LOGADDEXP.name, LOGADDEXP.combine, values)({"value": torch.zeros(3, device="meta")})
    values = [{"values": torch.zeros(3, 2, device="meta"), "payload": torch.zeros(3, 2, device="meta")}] * 2
    with pytest.raises(OperatorError, match=r"operator 'topk\(2\)'"):
        device_fold(TOPK(2).name, TOPK(2).combine, values)(values[0])
