"""What a GPU would compile anew: nothing as keys are added or prompts vary in length.

A key is made by Triton's own binder, for a GPU that need not be there.
"""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, MockTensor, create_function_from_signature

from attention import Spec, gpu
from attention.arrays import check_inputs
from attention.decode.sharded import Options, ShardedCall
from attention.gpu import loading
from attention.gpu import placement as where
from attention.gpu.decode import decode
from attention.gpu.decode.decode import decode_partial
from attention.gpu.decode.occupancy import Multiprocessor
from attention.gpu.prefill import prefill, prefill_inputs
from attention.gpu.prefill.prefill import prefill_partial
from attention.visibility import Masking
from tests.attention.gpu.inputs import made
from tests.thinning import covering

FULL = Spec(causal=True, window=9, softcap=3.0, alibi_slopes=(0.1, 0.2, 0.3, 0.4))
KINDS = {"plain": Spec(), "causal": Spec(causal=True), "full": FULL}


def keys_of(kernel, launches):
    """The compile keys of launches (arguments, keywords)."""
    function = JITFunction(kernel.fn, **kernel.kwargs)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(function.signature, function.params, backend)
    return {str(bind(*args, **more)[1:]) for args, more in launches}


@pytest.fixture
def launched(monkeypatch):
    """The launches of either kernel, none of which runs."""
    found = SimpleNamespace(decode=[], prefill=[], asked=[], grids=[])

    class Recorder:
        def __init__(self, launches):
            self.launches = launches

        def __getitem__(self, grid):
            found.grids.append(grid)
            return lambda *args, **more: self.launches.append((args, more))

        def warmup(self, *args, grid, **more):
            """As Triton's, which compiles, and loads when what launches it is asked for."""
            found.asked.append((tuple(MockTensor.wrap_dtype(x) for x in args), more))
            return Compiled()

    class Compiled:
        metadata = SimpleNamespace(shared=72 << 10)

        def __getitem__(self, grid):
            self.n_regs = 160

    found.kernels = decode._kernel(), prefill.prefill_kernel
    decode.interpreted()
    monkeypatch.setattr(decode, "_kernel", lambda: Recorder(found.decode))
    monkeypatch.setattr(prefill, "prefill_kernel", Recorder(found.prefill))
    return found


@pytest.mark.parametrize("given", ["plain", "lengths", "full", "mask"])
@pytest.mark.parametrize("grows", ["in place", "anew"])
def test_a_step_of_decoding(launched, given, grows):
    """Keys at the front of memory that was there before, or all of them in new memory."""
    kept = made(0, 2, 4, 2, 1, 1024, 64, 64)
    for n in (513, 514, 520, 528, 1000, 1024):
        q, k, v = (kept[0], *(x[:, :, :n] for x in kept[1:])) if grows == "in place" else made(0, 2, 4, 2, 1, n, 64, 64)
        where = {"kv_lengths": torch.tensor([n, n - 1])} if given == "lengths" else {}
        if given in ("full", "mask"):
            where["kv_mask"] = torch.ones(2, n, dtype=torch.bool)
        if given == "full":
            where |= {"q_positions": torch.tensor([n]), "kv_positions": torch.arange(n).expand(2, n).contiguous()}
        decode_partial(q, k, v, spec=FULL if given == "full" else None, **where)
    assert len(launched.decode) == 6 and len(keys_of(launched.kernels[0], launched.decode)) == 1


@pytest.mark.parametrize("given", ["plain", "lengths", "paged", "full"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_kernel_that_is_asked_is_the_one_that_is_launched(launched, monkeypatch, given, dtype):
    """Once, for all lengths; and programs fill whole waves of what its registers and shared memory leave room for."""
    monkeypatch.setattr(decode, "_multiprocessor_of", lambda device: Multiprocessor(512, 16, 228 << 10, 1024))
    monkeypatch.setattr(decode, "machine_of", lambda device: ("sm_90", 132))
    decode.slots_of.cache_clear()
    for n in (8192, 8208, 16384):
        q, k, v = (torch.empty(8, heads, rows, 64, dtype=dtype) for heads, rows in ((32, 1), (8, n), (8, n)))
        where = {}
        if given in ("lengths", "paged"):
            where["kv_lengths"] = torch.full((8,), n, dtype=torch.int32)
        if given == "paged":
            k, v = (x.view(8 * n // 16, 8, 16, 64) for x in (k, v))
            where["block_tables"] = torch.zeros(8, n // 16, dtype=torch.int32)
        if given == "full":
            where = {"kv_mask": torch.ones(8, n, dtype=torch.bool)}
            where |= {"q_positions": torch.tensor([n]), "kv_positions": torch.arange(n)}
        spec = Spec(causal=True, window=n) if given == "full" else None
        decode_partial(q, k, v, spec=spec, **where)
    decode.slots_of.cache_clear()
    assert len(launched.asked) == 1
    keys = keys_of(launched.kernels[0], launched.decode)
    assert len(launched.decode) == 3 and keys == keys_of(launched.kernels[0], launched.asked)
    slots = 132 * (3 if launched.asked[0][1]["num_warps"] == 4 else 1)
    grids = set(launched.grids)
    assert grids == ({(slots, 1, 1)} if given in ("lengths", "paged") else {(1, slots // 64, 64)}), grids


def test_pages_that_come(launched):
    q, k, v = made(0, 2, 4, 2, 1, 16, 64, 64)
    for pages in (33, 34, 48, 64):
        pool = [x[:1].expand(100, -1, -1, -1).contiguous() for x in (k, v)]
        tables = torch.zeros(2, pages, dtype=torch.int32)
        decode_partial(q, *pool, kv_lengths=torch.tensor([16 * pages] * 2), block_tables=tables)
    assert len(keys_of(launched.kernels[0], launched.decode)) == 1


@pytest.mark.parametrize("given", ["plain", "causal", "lists"])
def test_prompts_of_all_lengths(launched, given):
    for q_len, n in ((33, 70), (48, 64), (17, 100), (64, 64), (50, 51), (32, 200)):
        q, k, v = made(0, 2, 4, 2, q_len, n, 64, 64)
        where = {}
        if given == "lists":
            shuffled = np.random.default_rng(n).permutation(n)
            where = {"q_positions": torch.arange(q_len), "kv_positions": torch.from_numpy(shuffled)}
            where["kv_mask"] = torch.ones(2, n, dtype=torch.bool)
        prefill_partial(q, k, v, spec=Spec(causal=given != "plain"), **where)
    assert len(launched.prefill) == 6 and len(keys_of(launched.kernels[1], launched.prefill)) == 1


def sharded(comm, spec, shape, n, *, moved=False, mask=False, lengths=None, page=0, shared=False):
    """A call on a rank, with positions where the spec needs them."""
    heads, q_len, d = shape
    q, k, v = made(0, 2, heads, 2, q_len, n, d, d)
    if page:
        k, v = made(0, 2, heads, 2, q_len, page, d, d)[1:]
    d_v = d // 2 if shared else d
    v = k[..., :d_v] if shared else v
    masking = Masking(kv_mask=torch.ones(3 + n, dtype=torch.bool)[3:] if mask else None)  # not aligned
    if lengths is not None:
        masking = masking._replace(kv_lengths=torch.full((5,), n, dtype=lengths)[3:])
    if page:
        masking = masking._replace(block_tables=torch.zeros(2, n // page, dtype=torch.int64))
    if spec.needs_positions:
        masking = masking._replace(q_positions=torch.arange(n, n + q_len), kv_positions=torch.arange(1 + n)[1:])
    inputs = check_inputs("a test", q, k, v, spec=spec, masking=masking)
    return ShardedCall(comm, inputs, slice(0, heads), q, None, Options(spec, masking, False, None))


@pytest.fixture
def rank(launched, monkeypatch):
    """The communicator of a rank that is a process; the other rank has pages of 16 keys."""
    monkeypatch.setattr(where, "_held", lambda x: True)
    monkeypatch.setattr(loading, "interpreted", lambda: False)
    monkeypatch.setattr(gpu, "fold", lambda outs, lses: None)
    other = np.array([16]).view(np.uint8)
    return SimpleNamespace(
        attributes={},
        size=2,
        rank=0,
        in_process=False,
        barrier=lambda: None,
        allgather_bytes=lambda record: [record, other],
    )


@pytest.mark.parametrize(
    ("kind", "q_len", "d", "moved", "shared", "masked"),
    covering(KINDS, [1, 20], [72, 64], [False, True], [False, True], [False, True]),
)
def test_the_first_call_of_a_kind_loads_all_forms(launched, rank, monkeypatch, kind, q_len, d, moved, shared, masked):
    """Whatever a later call has of keys, masks, lengths and pages meets no new compile key."""
    if moved:  # positions are on the GPU then, and not looked at
        monkeypatch.setattr(prefill_inputs, "_run_start", lambda positions: None)
    spec, shape, first = KINDS[kind], (4, q_len, d), {"n": 40, "mask": True} if masked else {"n": 0}
    call = sharded(rank, spec, shape, shared=shared, **first)
    loading.load_once("tree_decode", call, moved=moved)
    loaded = [keys_of(*of) for of in zip(launched.kernels, (launched.decode, launched.prefill), strict=True)]
    assert any(loaded)
    launched.decode.clear()
    launched.prefill.clear()
    pages = (0,) if moved or q_len > 16 else (0, 16)
    for n, mask, lengths, page in product((0, 1, 16, 48, 1040), (False, True), (None, torch.int32, torch.int64), pages):
        if page and (lengths is None or n % page):
            continue
        inputs = sharded(rank, spec, shape, n, mask=mask, lengths=lengths, page=page, shared=shared).inputs
        if moved:
            v = inputs.v.new_zeros(inputs.v.shape)
            seen = inputs.visibility
            inputs = replace(inputs, v=v, visibility=None if seen is None else seen.with_keys(seen.keys))
        for result in (inputs.empty_partial(), lse_not_aligned(inputs)):
            gpu.attend(inputs, result)
    assert launched.decode or launched.prefill
    for kernel, launches, known in zip(launched.kernels, (launched.decode, launched.prefill), loaded, strict=True):
        assert keys_of(kernel, launches) <= known


def lse_not_aligned(inputs):
    """Results as those of a ring: one behind the other, of 8 bytes each."""
    partial = inputs.empty_partial()
    return partial._replace(lse=torch.empty(partial.lse.numel() + 1)[1:].view(partial.lse.shape))


def test_pages_of_a_new_size_make_ranks_meet_again(launched, rank):
    """Sizes that the other rank had at a meeting are loaded here too, and meet nobody later."""
    met = []
    rank.barrier = lambda: met.append(1)
    for n, page, meetings in ((40, 0, 1), (48, 16, 1), (64, 32, 2), (64, 16, 2), (40, 0, 2), (64, 32, 2)):
        lengths = torch.int32 if page else None
        loading.load_once("tree_decode", sharded(rank, Spec(), (4, 1, 64), n, lengths=lengths, page=page))
        assert len(met) == 2 * meetings, (n, page)
