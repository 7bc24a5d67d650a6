"""FlashInfer's wrappers for batches and latents: pages where the cache lies, lengths, and when a plan is made."""

import math
from threading import Thread

import numpy as np
import pytest
import torch

from attention import Spec, local_attention
from attention.local import flashinfer
from attention.local.choice import FLASHINFER_BATCH, FLASHINFER_LATENTS
from tests.attention.local import test_library_kernels
from tests.attention.local.doubles import A100, FlashInferDecode, FlashInferLatents, OursError, libraries
from tests.attention.local.test_library_kernels import CAUSAL, SIXTEEN_BITS, tensors
from topocomm import OperatorError

MLA_SCALE = 192**-0.5
KINDS = {FLASHINFER_BATCH: ("decode", FlashInferDecode), FLASHINFER_LATENTS: ("latents", FlashInferLatents)}


def there(name, **options):
    key, made = KINDS[name]
    double = made(**options)
    return libraries(A100, **{key: double}), double


def tensors_for(name, batch=3, n=37, dtype=torch.bfloat16):
    if name == FLASHINFER_LATENTS:
        q, latents, _ = tensors((batch, 1, 6, 1, n, 576, 8), dtype, peak=0.2)
        return q, latents, latents[..., :512]
    return tensors((batch, 2, 5, 1, n, 64, 64), dtype)


def spec_for(name, **options):
    return Spec(scale=MLA_SCALE if name == FLASHINFER_LATENTS else None, **options)


def compare(got, q, k, v, spec, kv_lengths=None):
    masks = {} if kv_lengths is None else {"kv_mask": np.arange(k.shape[2]) < np.array(kv_lengths)[:, None]}
    test_library_kernels.compare(got, q, k, v, spec, **masks)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("lengths", [None, [37, 1, 16], [5, 33, 37]], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_a_batch_of_sequences(name, lengths, dtype):
    world, double = there(name)
    q, k, v = tensors_for(name, dtype=dtype)
    options = {} if lengths is None else {"kv_lengths": lengths}
    with world:
        for causal in (False, True):  # one query sees all keys
            got = local_attention(q, k, v, spec=spec_for(name, causal=causal), **options)
            compare(got, q, k, v, spec_for(name), lengths)
    assert double.calls == [3, 3] and len(double.plans) == 1


@pytest.mark.parametrize("name", KINDS)
def test_what_lies_beyond_the_lengths_may_be_nan(name):
    world, _ = there(name)
    q, k, v = tensors_for(name)
    lengths = [9, 37, 20]
    for entry, count in enumerate(lengths):
        k[entry, :, count:] = math.nan
        v[entry, :, count:] = math.nan
    with world:
        got = local_attention(q, k, v, spec=spec_for(name), kv_lengths=np.array(lengths))
    compare(got, q, k.nan_to_num(), v.nan_to_num(), spec_for(name), lengths)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("bhnd", 1),  # 37 rows an entry: entries begin at no page of 16
        ("room", 16),  # 37 of 64 rows that there is room for
        ("rows", 1),  # [batch, n, heads, d]
        ("one", 1),  # of one batch entry the last page would end beyond the storage
        ("shared", 16),  # the same keys for all entries
    ],
)
def test_pages_are_where_the_cache_lies(layout, size):
    q, k, v = tensors_for(FLASHINFER_BATCH)
    if layout == "room":
        room = torch.full((2, 3, 2, 64, 64), torch.nan, dtype=k.dtype)
        room[0, :, :, 16:53], room[1, :, :, 16:53] = k, v
        k, v = room[:, :, :, 16:53]
    elif layout == "rows":
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    elif layout == "one":
        q, k, v = q[:1], k[:1].clone(), v[:1].clone()
    elif layout == "shared":
        room = torch.zeros(2, 1, 2, 48, 64, dtype=k.dtype)
        room[0, :, :, :37], room[1, :, :, :37] = k[:1], v[:1]
        k, v = room[:, :, :, :37].expand(2, 3, 2, 37, 64)
    world, double = there(FLASHINFER_BATCH)
    memory = []
    real = flashinfer._pages
    with world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer, "_pages", lambda *x: memory.append(real(*x)) or memory[-1])
        got = local_attention(q, k, v, kv_lengths=[37] * len(q))  # with lengths also for one entry
    compare(got, q, k, v, Spec())
    assert double.plans[0]["page_size"] == size
    assert [x.data_ptr() for x in memory] == [k.data_ptr(), v.data_ptr()]  # no copy


def test_latents_may_be_a_part_of_their_storage():
    q, latents, _ = tensors_for(FLASHINFER_LATENTS)
    room = torch.full((3, 1, 50, 640), torch.nan, dtype=latents.dtype)
    room[:, :, 5:42, :576] = latents
    k = room[:, :, 5:42, :576]
    world, double = there(FLASHINFER_LATENTS)
    with world:
        got = local_attention(q, k, k[..., :512], spec=spec_for(FLASHINFER_LATENTS))
    compare(got, q, k, k[..., :512], spec_for(FLASHINFER_LATENTS))
    assert double.plans[0]["page_size"] == 37


@pytest.mark.parametrize("name", KINDS)
def test_a_plan_serves_until_shapes_or_lengths_change(name):
    world, double = there(name)
    q, k, v = tensors_for(name)
    with world:
        for _ in range(3):  # layers
            local_attention(q.clone(), k, v, spec=spec_for(name))
        assert len(double.plans) == 1
        local_attention(q, k, v, spec=spec_for(name), kv_lengths=[37, 37, 37])  # the same
        assert len(double.plans) == 1
        for count, change in enumerate(([36, 37, 37], [35, 37, 37]), 2):
            got = local_attention(q, k, v, spec=spec_for(name), kv_lengths=change)
            compare(got, q, k, v, spec_for(name), change)
            assert len(double.plans) == count
        local_attention(q, k, v, spec=spec_for(name))  # still there
        assert len(double.plans) == 3
        local_attention(q, k, v, spec=Spec(scale=0.5))
        local_attention(q[:2], k[:2], v[:2], spec=spec_for(name))
        assert len(double.plans) == 5
    assert len(double.wrappers) == flashinfer.KEPT
    assert len({x.workspace.data_ptr() for x in double.wrappers}) == 1


@pytest.mark.parametrize("name", KINDS)
def test_the_plan_used_longest_ago_is_replaced(name):
    world, double = there(name)
    q, k, v = tensors_for(name)
    with world:
        for n in [*range(20, 37), 36, 35, 34, 33]:
            keys, values = k[:, :, :n], v[:, :, :n]
            compare(local_attention(q, keys, values, spec=spec_for(name)), q, keys, values, spec_for(name))
    assert len(double.plans) == 17 and len(double.wrappers) == flashinfer.KEPT


def test_a_wrapper_is_planned_anew_when_its_plan_was_copied():
    """Planning overwrites the pinned memory that the copy reads."""
    waited = []

    class Copied:
        def synchronize(self):
            waited.append(len(made.plans))

    world, made = there(FLASHINFER_BATCH)
    q, k, v = tensors_for(FLASHINFER_BATCH)
    with world, pytest.MonkeyPatch.context() as patch:
        real = flashinfer.Plan
        patch.setattr(flashinfer, "Plan", lambda wrapper, copied: real(wrapper, Copied()))
        for n in range(20, 26):
            local_attention(q, k[:, :, :n], v[:, :, :n])
    assert waited == [4, 5]


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_takes_the_plan_of_the_call_before(name):
    world, double = there(name)
    q, k, v = tensors_for(name)
    with world, pytest.MonkeyPatch.context() as patch:
        local_attention(q, k, v, spec=spec_for(name))
        patch.setattr(flashinfer, "capturing", lambda device: True)
        for _ in range(2):  # layers
            compare(local_attention(q, k, v, spec=spec_for(name)), q, k, v, spec_for(name))
        with pytest.raises(OperatorError, match=r"^local_attention: FlashInfer plans this call on the host"):
            local_attention(q, k[:, :, :30], v[:, :, :30], spec=spec_for(name))
        assert len(double.plans) == 1
        patch.setattr(flashinfer, "capturing", lambda device: False)
        for n in range(20, 30):
            local_attention(q, k[:, :, :n], v[:, :, :n], spec=spec_for(name))
        captured, *later = double.wrappers
    assert captured.planned is double.plans[0]  # as it was captured
    assert captured.workspace.data_ptr() not in {x.workspace.data_ptr() for x in later}


def test_lengths_in_host_memory_while_a_graph_is_captured():
    world, _ = there(FLASHINFER_BATCH)
    q, k, v = tensors_for(FLASHINFER_BATCH)
    with world, pytest.MonkeyPatch.context() as patch:
        local_attention(q, k, v, kv_lengths=[1, 2, 3])
        patch.setattr(flashinfer, "capturing", lambda device: True)
        with pytest.raises(OperatorError, match=r"kv_lengths is in host memory while a CUDA graph is captured"):
            local_attention(q, k, v, kv_lengths=[1, 2, 3])


def test_threads_share_no_wrapper():
    world, double = there(FLASHINFER_BATCH)
    q, k, v = tensors_for(FLASHINFER_BATCH)
    with world:
        local_attention(q, k, v)
        thread = Thread(target=local_attention, args=(q, k, v))
        thread.start()
        thread.join()
    assert len(double.wrappers) == len(double.plans) == 2


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"kv_lengths": [0, 37, 37]},  # an entry without keys
        {"kv_lengths": [37.0, 1.0, 2.0]},
        {"kv_lengths": [37, 37]},
        {"kv_lengths": [38, 1, 1]},
        {"kv_mask": np.ones(37, bool)},
        {"exact": "float32"},
        {"spec": Spec(window=3)},
        {"spec": CAUSAL, "q_positions": [36], "kv_positions": list(range(37))},
    ],
    ids=str,
)
def test_what_is_ours(name, options):
    world, double = there(name)
    q, k, v = tensors_for(name)
    with world, pytest.raises(OursError):
        local_attention(q, k, v, **options)
    assert not double.calls


def test_lengths_on_the_gpu_are_ours():
    world, double = there(FLASHINFER_BATCH)
    q, k, v = tensors_for(FLASHINFER_BATCH)
    with world, pytest.raises(OursError):
        local_attention(q, k, v, kv_lengths=torch.tensor([1, 2, 3]))
    assert not double.calls


def test_storage_that_is_no_pages_is_ours():
    q, k, v = tensors_for(FLASHINFER_BATCH)
    mixed = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (k, v)]  # [n, batch, heads, d]
    world, _ = there(FLASHINFER_BATCH)
    with world:
        with pytest.raises(OursError):
            local_attention(q, *mixed)
        with pytest.raises(OursError):  # more queries would need lengths of their own
            local_attention(q.expand(3, 10, 2, 64), k, v)


@pytest.mark.parametrize("name", KINDS)
def test_a_wrong_base_is_found(name):
    world, _ = there(name, ln=1.0)
    q, k, v = tensors_for(name)
    with world:
        got = local_attention(q, k, v, spec=spec_for(name))
    with pytest.raises(AssertionError):
        compare(got, q, k, v, spec_for(name))
