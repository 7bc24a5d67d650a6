import math
import sys
from types import SimpleNamespace

import pytest
import torch

from attention import Spec
from attention.local import flashinfer
from attention.local.flashinfer import flashinfer_partial
from tests.attention.local.kernels import CAUSAL, SHAPES, check, formula, on_cuda, tensors
from topocomm import MissingExtraError, OperatorError


def made_up(empty_lse, empty_out):
    """A flashinfer after its documentation; what it leaves in rows without keys depends on the release."""

    def single_prefill_with_kv_cache(
        q, k, v, *, causal=False, kv_layout="NHD", sm_scale=None, backend="auto", return_lse=False
    ):
        assert return_lse and all(x.is_contiguous() for x in (q, k, v))
        if kv_layout == "NHD":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        exact = formula(q.transpose(0, 1)[None], k[None], v[None], scale=sm_scale, causal=causal)
        out, lse = torch.from_numpy(exact.out[0]), torch.from_numpy(exact.lse[0]) / math.log(2)
        empty = lse == -math.inf
        out, lse = out.masked_fill(empty[..., None], empty_out), lse.masked_fill(empty, empty_lse)
        return out.transpose(0, 1).to(q.dtype), lse.T.contiguous().float()

    return SimpleNamespace(single_prefill_with_kv_cache=single_prefill_with_kv_cache)


@pytest.fixture(params=[(-math.inf, 0.0), (-math.inf, math.nan), (-49993.98, 0.0)], ids=["-inf", "NaN", "finite"])
def _library(request, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", made_up(*request.param))
    monkeypatch.setattr(flashinfer, "DEVICES", ("cpu",))


made_up_library = pytest.mark.usefixtures("_library")


@made_up_library
@pytest.mark.parametrize("spec", [Spec(), CAUSAL, Spec(scale=0.3, causal=True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_shapes(shape, spec):
    check(flashinfer_partial, *tensors(shape, torch.bfloat16), spec=spec)


@made_up_library
@pytest.mark.parametrize(("first", "count"), [(16, 5), (13, 5), (18, 5), (25, 5), (18, 7)])
def test_positions(first, count):
    positions = {"q_positions": list(range(first, first + count)), "kv_positions": list(range(18, 25))}
    check(flashinfer_partial, *tensors((2, 3, 2, count, 7, 16, 24), torch.float16), spec=CAUSAL, **positions)


@made_up_library
def test_rows_without_keys_and_no_keys():
    got = flashinfer_partial(*tensors((2, 3, 2, 5, 3, 16, 24), torch.float16), spec=CAUSAL)
    assert (got.lse[:, :, :2] == -math.inf).all() and (got.out[:, :, :2] == 0).all()
    assert got.lse[:, :, 2:].isfinite().all()
    got = flashinfer_partial(*tensors((2, 3, 2, 5, 0, 16, 24), torch.float16))
    assert got.out.shape == (2, 6, 5, 24)
    assert (got.lse == -math.inf).all() and (got.out == 0).all()


@made_up_library
def test_what_it_cannot_is_refused():
    q, k, v = tensors((2, 3, 2, 5, 4, 16, 24), torch.float16)
    with pytest.raises(OperatorError, match=r"^flashinfer_partial: .* consecutive .*; use attention.local_attention"):
        flashinfer_partial(q, k, v, spec=CAUSAL, q_positions=range(1, 6), kv_positions=range(4))
    with pytest.raises(OperatorError, match=r"^flashinfer_partial: this kernel gets no sinks"):
        flashinfer_partial(q, k, v, spec=Spec(sinks=[0.0] * 6))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    message = r"^attention\.flashinfer_partial needs flashinfer, which is not installed; run: pip install flashinfer-py"
    with pytest.raises(MissingExtraError, match=message):
        flashinfer_partial(*tensors(SHAPES[0]))


def test_the_library_itself():
    pytest.importorskip("flashinfer")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for shape in [(2, 3, 2, 5, 7, 64, 64), (3, 2, 4, 5, 37, 128, 128), (2, 2, 3, 7, 4, 64, 64)]:
        for spec in (Spec(), CAUSAL):
            for dtype in (torch.bfloat16, torch.float16):
                check(on_cuda(flashinfer_partial), *tensors(shape, dtype, peak=1.0), spec=spec, lse_atol=1e-3)
