"""The table against a second account of what each kernel takes, over calls and machines."""

from itertools import combinations, product

import numpy as np
import pytest

from attention import gpu
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
    TORCH_AMX,
    TORCH_CPU,
    Call,
    Machine,
    choose,
    refusal,
)

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
] + [
    Machine("cpu", "CPU", None, missing)
    for missing in (
        {},
        {"torch.amx": "none"},
        {"native": "not built"},
        {"native": "not built", "torch.amx": "none"},
        {"torch": "no grouped heads"},
    )
]
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
    for _ in range(500):
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
        return "native" not in machine.missing and not asked & {"merge", "strided"}
    if name in (TORCH_AMX, TORCH_CPU):
        return torch_takes(name, call, machine)
    return "merge" not in asked


def torch_takes(name, call, machine):
    """The same of torch's kernel for the CPU."""
    rounded = call.exact and call.dtypes[0] in ("float16", "bfloat16")
    nothing = 0 in (call.batch, call.heads, call.q_len, call.n)
    if name == TORCH_AMX and (call.q_len < 17 or call.dtypes[0] != "bfloat16" or "torch.amx" in machine.missing):
        return False
    fits = call.dtypes[0] == call.dtypes[1] and call.d == call.d_v and not nothing and "torch" not in machine.missing
    return fits and not rounded and not call.features - {"apart", "interleaved", "unaligned"}


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
    order = cuda if machine.device == "cuda" else (TORCH_AMX, ROWS, TORCH_CPU, BLOCKS)
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
            assert row.library in (None, "triton", "native", "torch", "torch.amx")
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
