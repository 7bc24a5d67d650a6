"""The table against a second account of what each kernel takes, over calls and machines; and what it is asked."""

from itertools import combinations, product

import numpy as np
import pytest
import torch

from attention import Spec, gpu
from attention.arrays import check_inputs
from attention.local.calls import call_of, call_of_inputs, well_formed
from attention.local.choice import (
    BLOCKS,
    CUDNN,
    DECODE,
    FEATURES,
    FLASH_3,
    FLASHINFER,
    FLASHINFER_BATCH,
    FLASHINFER_LATENTS,
    PREFILL,
    ROWS,
    TABLE,
    TORCH_CPU,
    Call,
    Machine,
    choose,
    refusal,
)
from attention.local.compiled_attention import covers
from attention.visibility import Masking

LIBRARIES = ("flash_attn_interface", "cuDNN", "flashinfer", "triton", "native", "torch")
NONE_THERE = {name: f"{name} is not installed" for name in LIBRARIES}
MACHINES = [
    Machine("cuda", name, capability, missing)
    for name, capability in (
        ("T4", (7, 5)),
        ("A100", (8, 0)),
        ("L40S", (8, 9)),
        ("H100", (9, 0)),
        ("B200", (10, 0)),
        ("RTX 5090", (12, 0)),
        ("MI300X", None),
    )
    for missing in ({}, {"flash_attn_interface": "no"}, {"cuDNN": "off"}, NONE_THERE)
] + [Machine("cpu", "CPU", None, missing) for missing in ({}, {"native": "not built"}, {"torch": "no grouped heads"})]
HEAD_DIMS = [
    (1, 1),
    (20, 20),
    (64, 64),
    (128, 128),
    (64, 512),
    (192, 128),
    (256, 256),
    (512, 512),
    (576, 512),
    (600, 8),
]
"""(576, 512) once more as latents."""


def calls(machine, rng=None):
    """Calls on a machine: every feature by itself over many sizes, or random ones."""
    features = [frozenset(some) for count in (0, 1) for some in combinations(FEATURES, count)]
    if rng is None:
        for few, dims, some, exact in product(
            ((1, 1), (3, 900), (16, 16), (17, 17), (700, 900)), HEAD_DIMS, features, (False, True)
        ):
            yield Call(machine.device, ("bfloat16",) * 2, 1, 8, 2, *few, *dims, "all", some, dims == (576, 512), exact)
        return
    names = list(FEATURES)
    for _ in range(1500):
        q_len, n = int(rng.choice([0, 1, 2, 16, 17, 300])), int(rng.choice([0, 1, 2, 16, 17, 300, 4096]))
        of_q = str(rng.choice(["float32", "float16", "bfloat16"]))
        dims = HEAD_DIMS[rng.integers(len(HEAD_DIMS))]
        seen = rng.choice(["all", *(["square"] if 1 < q_len == n else []), *(["last"] if 1 < q_len < n else [])])
        yield Call(
            machine.device,
            (of_q, "float32" if rng.random() < 0.1 else of_q),
            int(rng.choice([0, 1, 1, 2, 8, 70000])),
            *((0, 2) if rng.random() < 0.03 else (8, 2)),
            q_len,
            n,
            *dims,
            str(seen),
            frozenset(str(x) for x in rng.choice(names, rng.integers(3), replace=False)),
            dims == (576, 512) and rng.random() < 0.5,
            bool(rng.random() < 0.3),
        )


def takes(name, call, machine):
    """What each kernel takes, once more: from its documentation, in words of its own."""
    asked, sixteen = call.features, call.dtypes[0] in ("float16", "bfloat16")
    one_dtype, newest = call.dtypes[0] == call.dtypes[1], machine.capability or (0, 0)
    nothing = 0 in (call.batch, call.heads, call.q_len, call.n)
    if name in (FLASH_3, CUDNN, FLASHINFER, FLASHINFER_BATCH, FLASHINFER_LATENTS):
        if not (sixteen and one_dtype) or call.exact or nothing:
            return False
        if name in (FLASHINFER_BATCH, FLASHINFER_LATENTS):
            return planned_takes(name, call, machine)
        if asked - {"apart", "interleaved"}:
            return False
        if name == FLASH_3:
            equal = call.d == call.d_v and call.d <= 256 and call.d % 8 == 0
            hopper_pair = 128 < call.d <= 192 and 96 < call.d_v <= 128
            latents = call.latents and (call.d, call.d_v) == (576, 512)
            return (
                newest == (9, 0) and "flash_attn_interface" not in machine.missing and (equal or hopper_pair or latents)
            )
        if name == CUDNN:
            narrow = max(call.d, call.d_v) <= 128 and call.d % 8 == call.d_v % 8 == 0
            sizes = call.q_len > 16 and call.n > 1 and call.batch <= 65535
            return (8, 0) <= newest <= (12, 1) and "cuDNN" not in machine.missing and narrow and sizes
        alone = call.batch == 1 and call.q_len <= 16 and call.d == call.d_v and call.d in (64, 128, 256)
        return (8, 0) <= newest <= (12, 1) and "flashinfer" not in machine.missing and alone and "apart" not in asked
    if name in (DECODE, PREFILL):
        if "triton" in machine.missing:
            return False
        if name == DECODE:
            few = 1 <= call.q_len <= 16 and max(call.d, call.d_v) <= (576 if sixteen else 256)
            return few and one_dtype and not asked & {"merge", "strided"}
        return max(call.d, call.d_v) <= 512 and "block_tables" not in asked
    if name == ROWS:
        return "native" not in machine.missing and call.q_len <= 16 and not asked & {"merge", "strided"}
    if name == TORCH_CPU:
        rounded = sixteen and call.exact
        fits = one_dtype and call.d == call.d_v and not nothing and "torch" not in machine.missing
        return fits and not rounded and not asked - {"apart", "interleaved", "unaligned"}
    return "merge" not in asked


def planned_takes(name, call, machine):
    """The same of FlashInfer's wrappers, for a call in 16 bits with a key at least."""
    asked, newest = call.features, machine.capability or (0, 0)
    if call.q_len > 1 or "flashinfer" in machine.missing or newest < (8, 0):
        return False
    if name == FLASHINFER_BATCH:
        square = call.d == call.d_v and call.d in (64, 128, 256)
        return square and newest <= (12, 1) and not asked - {"kv_lengths"}
    latents = call.latents and (call.d, call.d_v) == (576, 512)
    return latents and newest <= (9, 0) and not asked - {"kv_lengths", "apart", "interleaved"}


def right(call, machine):
    """The kernel that should be chosen: the first of the device's that takes the call, or its last."""
    cuda = FLASH_3, CUDNN, FLASHINFER, FLASHINFER_BATCH, FLASHINFER_LATENTS, DECODE, PREFILL
    order = cuda if machine.device == "cuda" else (ROWS, TORCH_CPU, BLOCKS)
    return next((name for name in order if takes(name, call, machine)), order[-1])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.name}-{'-'.join(m.missing) or 'all'}")
def test_every_choice_takes_what_the_call_asks(machine):
    rng = np.random.default_rng(3)
    for call in [*calls(machine), *calls(machine, rng)]:
        found = choose(call, machine)
        assert found.row.name == right(call, machine), call
        assert all(said for _, said in found.passed)


def test_ours_are_always_possible():
    """Without any other library every call has a kernel of ours; what they refuse is refused in words."""
    for here in (Machine("cuda", "H100", (9, 0), dict.fromkeys(LIBRARIES[:3], "no")), Machine("cpu", "CPU")):
        for call in calls(here, np.random.default_rng(5)):
            row = choose(call, here).row
            assert row.library in (None, "triton", "native", "torch")
            wide = max(call.d, call.d_v) > 512
            paged = "block_tables" in call.features
            merged = here.device == "cpu" and "merge" in call.features
            if here.device == "cpu" and not merged:
                assert refusal(row, call, here) is None
            if here.device == "cuda" and not wide and not paged:
                assert refusal(row, call, here) is None


@pytest.mark.parametrize("features", [{"positions"}, {"merge"}, {"kv_lengths"}], ids=str)
def test_ours_come_first_where_only_they_can(features):
    call = Call("cuda", ("bfloat16",) * 2, 1, 32, 8, 512, 512, 128, 128, "all", frozenset(features))
    assert choose(call, Machine("cuda", "H100", (9, 0))).row.name == PREFILL
    exact = Call("cuda", ("bfloat16",) * 2, 1, 32, 8, 1, 512, 128, 128, exact=True)
    assert choose(exact, Machine("cuda", "H100", (9, 0))).row.name == DECODE


def test_why_others_were_passed():
    call = Call("cuda", ("bfloat16",) * 2, 8, 32, 8, 1, 4096, 128, 128)
    found = choose(call, Machine("cuda", "A100", (8, 0), {"flashinfer": "flashinfer is not installed"}))
    assert found.row.name == DECODE
    assert found.passed == (
        (FLASH_3, "is for compute capability 9.0, this is 8.0"),
        (CUDNN, "is for 17 queries and more"),
        (FLASHINFER, "flashinfer is not installed"),
        (FLASHINFER_BATCH, "flashinfer is not installed"),
        (FLASHINFER_LATENTS, "flashinfer is not installed"),
    )
    assert choose(call, Machine("cuda", "MI300X", None)).passed[0][1].endswith("this is none of NVIDIA's")


def test_every_row_can_be_chosen():
    """A kernel that no call on any machine gets has no place in the table."""
    chosen = {choose(call, here).row.name for here in MACHINES for call in calls(here)}
    assert chosen == {row.name for row in TABLE}


def test_the_widest_heads_of_our_kernels():
    widest = {
        dtype: max(dims.d[1] for dims in row.head_dims if dtype == 2 or not dims.sixteen_bits)
        for dtype in (2, 4)
        for row in TABLE
        if row.name == DECODE
    }
    assert widest == gpu.DECODE_WIDEST
    assert next(row for row in TABLE if row.name == DECODE).queries == (1, gpu.DECODE_QUERIES)


def arrays(q_len=3, n=40, d=64, d_v=64, dtype=torch.bfloat16):
    shapes = (2, 6, q_len, d), (2, 3, n, d), (2, 3, n, d_v)
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("sizes", "spec", "where", "seen"),
    [
        ((20, 40), Spec(), {}, "all"),
        ((20, 40), Spec(causal=True), {}, "last"),
        ((40, 40), Spec(causal=True), {}, "square"),
        ((1, 40), Spec(causal=True), {}, "all"),
        ((41, 40), Spec(causal=True), {}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40), "kv_positions": range(40)}, "last"),
        ((20, 40), Spec(causal=True), {"q_positions": range(40, 60), "kv_positions": [*range(40)][::-1]}, "all"),
        ((20, 40), Spec(causal=True), {"q_positions": range(39, 59), "kv_positions": range(40)}, "all"),
        ((20, 40), Spec(causal=True), {"q_positions": range(21, 41), "kv_positions": range(40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40), "kv_positions": range(39, -1, -1)}, None),
        ((3, 40), Spec(causal=True), {"q_positions": range(37, 40), "kv_positions": range(40)}, None),  # not looked at
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": range(20, 39), "kv_positions": range(40)}, None),
        ((20, 40), Spec(causal=True), {"q_positions": np.ones(20), "kv_positions": np.zeros(40)}, None),
    ],
    ids=str,
)
def test_which_query_sees_which_key(sizes, spec, where, seen):
    where = {name: list(x) for name, x in where.items()}
    call = call_of(tuple(arrays(*sizes)), spec, Masking(**where), exact=False)
    assert ("positions" in call.features) == (seen is None)
    assert seen is None or call.seen == seen


def test_what_a_call_asks():
    q, k, v = arrays()
    spec = Spec(causal=True, window=3, softcap=2.0, alibi_slopes=[1.0] * 6)
    call = call_of((q, k, v), spec, Masking(kv_mask=[True] * 40, kv_lengths=[1, 2]), exact=True)
    assert call.features == {"window", "softcap", "alibi_slopes", "kv_mask", "kv_lengths"} and call.exact
    for odd in ([0, 1], [1, 41], [1, 2, 3], [1.0, 2.0]):
        found = call_of((q, k, v), Spec(), Masking(kv_lengths=odd), exact=True)
        assert found.features == {"kv_lengths", "device_lengths"}
    mixed = k.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    assert call_of((q, mixed, mixed), Spec(), Masking(), exact=False).features == {"interleaved"}
    assert (call.batch, call.heads, call.kv_heads, call.q_len, call.n, call.d, call.d_v) == (2, 6, 3, 3, 40, 64, 64)
    pages = call_of((q, k, v), Spec(), Masking(block_tables=torch.zeros(2, 5, dtype=torch.int64)), exact=False)
    assert pages.n == 200 and pages.features == {"block_tables"}
    assert call_of((q, k, v.transpose(2, 3).contiguous().transpose(2, 3)), Spec(), Masking(), exact=False).features == {
        "strided",
        "unaligned",
        "apart",
    }
    assert call_of((q[..., 1:], k[..., 1:], v), Spec(), Masking(), exact=False).features == {"unaligned"}
    wide = torch.zeros(2, 3, 40, 576)
    assert call_of((wide[:, :, :1], wide, wide[..., :512]), Spec(), Masking(), exact=False).latents
    assert not call_of((q, k, v), Spec(), Masking(), exact=False).latents


def test_well_formed(monkeypatch):
    monkeypatch.setattr("attention.gpu.placement._held", lambda x: True)
    q, k, v = arrays()
    assert well_formed(q, k, v)
    for wrong in (
        (q, k, v[:, :, 1:]),
        (q[:1], k, v),
        (q[..., 1:], k, v),
        (q[:, :5], k, v),
        (q, k.float(), v),
        (q[0], k, v),
    ):
        assert not well_formed(*wrong)
    assert not well_formed(q, k[:, :0], v[:, :0]) and not well_formed(q, k.numpy, v)
    assert not well_formed(q.requires_grad_(), k, v)


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_kernel_is_asked_without_the_table(seed):
    """`covers` is what the table says of it, also for calls that it does not get."""
    rng = np.random.default_rng(seed)
    here = Machine("cpu", "CPU")
    for _ in range(40):
        q_len, n, d = (int(rng.choice(sizes)) for sizes in ((1, 3, 16, 17, 30), (1, 5, 40), (8, 20)))
        q, k, v = arrays(q_len, n, d, int(rng.choice([d, 12])), dtype=torch.float32)
        if rng.random() < 0.2:
            k = k.transpose(2, 3).contiguous().transpose(2, 3)
        spec = Spec(causal=bool(rng.random() < 0.5), window=int(rng.choice([2, 9])) if rng.random() < 0.3 else None)
        mask = rng.random(n) < 0.8 if rng.random() < 0.3 else None
        inputs = check_inputs("test", q, k, v, spec=spec, masking=Masking(kv_mask=mask))
        call = call_of_inputs(inputs, exact=bool(rng.random() < 0.5))
        assert covers(inputs) == (choose(call, here).row.name == ROWS)
        assert ("kv_mask" in call.features) == (mask is not None and not mask.all())


def test_a_position_that_hides_a_key_on_the_cpu():
    q, k, v = arrays(20, 40)
    positions = {"q_positions": range(20, 40), "kv_positions": range(40)}
    inputs = check_inputs("test", q, k, v, spec=Spec(causal=True), masking=Masking(*map(list, positions.values())))
    assert call_of_inputs(inputs, exact=False).seen == "last" and not call_of_inputs(inputs, exact=False).features
    lengths = Masking(*map(list, positions.values()), kv_lengths=[40, 39])
    inputs = check_inputs("test", q, k, v, spec=Spec(causal=True), masking=lengths)
    assert {"kv_mask", "positions"} <= call_of_inputs(inputs, exact=False).features
