"""`local_attention` by kernels of other libraries, through doubles of them, against the float64 formula."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attention import Partial, Spec, local_attention, reference_attention, tree_decode
from attention.local import local_machine as machine
from attention.local.choice import CUDNN, FLASH_3, FLASHINFER, TORCH_AMX, TORCH_CPU, Machine
from tests.attention.cases import arrays, assert_close
from tests.attention.local.doubles import A100, H100, Cudnn, Flash3, FlashInfer, OursError, libraries
from topocomm import OperatorError, run_local

CAUSAL = Spec(causal=True)
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SIXTEEN_BITS = (torch.bfloat16, torch.float16)

# batch, kv_heads, query heads per key head, q_len, n, d, d_v: all sizes of a call differ.
FLASH_3_SHAPES = [
    (2, 3, 2, 5, 7, 16, 16),
    (3, 2, 4, 1, 37, 24, 24),
    (2, 1, 3, 33, 41, 256, 256),
    (2, 3, 1, 20, 21, 192, 128),
    (3, 2, 2, 19, 19, 64, 64),
]
CUDNN_SHAPES = [
    (2, 3, 2, 19, 23, 16, 24),
    (3, 2, 4, 17, 37, 128, 128),
    (2, 5, 1, 21, 21, 64, 8),
    (1, 2, 3, 40, 23, 8, 16),
]
FLASHINFER_SHAPES = [(1, 3, 2, 5, 7, 64, 64), (1, 2, 8, 1, 37, 128, 128), (1, 2, 3, 16, 16, 256, 256)]
DOUBLES = {
    FLASH_3: ("flash3", Flash3, H100),
    CUDNN: ("cudnn", Cudnn, A100),
    FLASHINFER: ("flashinfer", FlashInfer, A100),
}
SHAPES = {FLASH_3: FLASH_3_SHAPES, CUDNN: CUDNN_SHAPES, FLASHINFER: FLASHINFER_SHAPES}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def tensors(shape, dtype, **options):
    return [torch.from_numpy(x).to(dtype) for x in arrays(shape, **options)]


def there(name, **options):
    """(a machine with this library alone, its double)."""
    key, made, here = DOUBLES[name]
    double = made(**options)
    return libraries(here, **{key: double}), double


def compare(got, q, k, v, spec=None, *, lse_atol=5e-6, **options):
    """A result with the formula on the same rounded inputs, and exactly (0, -inf) in rows without keys."""
    if spec is not None and spec.causal and not options:
        q_len, n = q.shape[2], k.shape[2]
        options = {"q_positions": np.arange(n - q_len, n), "kv_positions": np.arange(n)}
    exact = reference_attention(*(x.double().numpy() for x in (q, k, v)), spec=spec, **options)
    assert isinstance(got, Partial) and got.out.dtype == got.lse.dtype == torch.float32
    largest = max(float(v.abs().max()), 1)
    assert_close(got.out, exact.out, atol=2 * ROUNDING[q.dtype] * largest)
    assert_close(got.lse, exact.lse, atol=lse_atol * max(1, np.abs(exact.lse).max()))


def check(name, q, k, v, spec=None, **options):
    world, double = there(name)
    with world:
        got = local_attention(q, k, v, spec=spec, **options)
    assert double.calls
    compare(got, q, k, v, spec, **options)
    return got


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
@pytest.mark.parametrize("spec", [None, CAUSAL, Spec(scale=0.3, causal=True)], ids=str)
@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_odd_shapes(name, shape, spec, dtype):
    q_len, n = shape[3], shape[4]
    if spec is not None and q_len > n:
        pytest.skip("rows without keys are ours")
    check(name, *tensors(shape, dtype), spec=spec)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (range(50, 73), range(13, 50)),  # behind all keys
        (range(27, 50), range(13, 50)),  # the last of them
        (range(5, 28), range(5, 28)),  # a square
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [FLASH_3, CUDNN])
def test_positions_that_a_word_says(name, queries, keys):
    q, k, v = tensors((2, 3, 2, len(queries), len(keys), 16, 16), torch.bfloat16)
    check(name, q, k, v, spec=CAUSAL, q_positions=list(queries), kv_positions=np.array(keys))


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (range(26, 49), range(13, 50)),  # the last key is seen by none
        (range(28, 51), range(13, 50)),  # a position without a key
        (range(8, 31), range(13, 31)),  # some queries see nothing
        ([*range(27, 49), 48], range(13, 50)),
        ([*range(48, 26, -1), 49], range(13, 50)),
        (torch.arange(27, 50).expand(2, 23).clone(), range(13, 50)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [FLASH_3, CUDNN])
def test_other_positions_are_ours(name, queries, keys):
    q, k, v = tensors((2, 3, 2, 23, len(keys), 16, 16), torch.bfloat16)
    world, _ = there(name)
    with world, pytest.raises(OursError):
        local_attention(q, k, v, spec=CAUSAL, q_positions=queries, kv_positions=np.array(keys))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)
def test_latents(dtype):
    """Multi-head latent attention: the rotary part and the latents are multiplied apart, and nothing is copied."""
    q, latents, _ = tensors((2, 1, 16, 1, 45, 576, 8), dtype, peak=0.2)
    got = check(FLASH_3, q, latents, latents[..., :512], spec=Spec(scale=192**-0.5))
    assert got.out.shape == (2, 16, 1, 512)
    world, _ = there(FLASH_3)
    with world, pytest.raises(OursError):  # values of their own are no latents
        local_attention(q, latents, latents[..., :512].clone())


def test_keys_are_split_where_queries_are_few():
    world, double = there(FLASH_3)
    with world:
        local_attention(*tensors(FLASH_3_SHAPES[0], torch.bfloat16))
    assert double.calls == [0]  # its default, 1, attends all keys of a head in one program
    world, double = there(FLASHINFER)
    with world:
        local_attention(*tensors(FLASHINFER_SHAPES[0], torch.bfloat16))
    assert double.calls == ["fa2"]


def test_storage_that_is_larger_than_its_keys():
    q, k, v = tensors((1, 3, 2, 5, 7, 64, 64), torch.bfloat16)
    room = torch.full((2, 1, 3, 60, 64), torch.nan, dtype=torch.bfloat16)
    room[0, :, :, 9:16], room[1, :, :, 9:16] = k, v
    for name in (FLASH_3, FLASHINFER):
        check(name, q, room[0, :, :, 9:16], room[1, :, :, 9:16], spec=CAUSAL)
    world, _ = there(FLASHINFER)
    with world, pytest.raises(OursError):  # it would read values by the strides of keys
        local_attention(q, k, room[1, :, :, 9:16])
    world, _ = there(FLASH_3)
    with world, pytest.raises(OursError):
        local_attention(q[..., 1:57], k[..., :56], v[..., :56])  # rows begin at any byte


@pytest.mark.parametrize(("name", "shape"), [(FLASH_3, (2, 3, 2, 5, 9, 16, 16)), (CUDNN, (2, 3, 2, 20, 31, 16, 16))])
def test_nan_surfaces_though_a_kernel_marks_it_like_an_empty_row(name, shape):
    q, k, v = tensors(shape, torch.bfloat16)
    q[1, 4, 3] = math.nan
    world, _ = there(name)
    with world:
        got = local_attention(q, k, v, spec=CAUSAL)
    assert got.lse[1, 4, 3].isnan() and got.out[1, 4, 3].isnan().all()
    assert got.lse.isnan().sum() == 1 and got.out.isnan().sum() == 16


def test_the_result_may_be_given():
    q, k, v = tensors((2, 3, 2, 23, 31, 16, 16), torch.float16)
    room = torch.full((2, 6, 23, 20), torch.nan)
    out = Partial(room[..., 2:18], torch.full((6, 2, 23), torch.nan).transpose(0, 1))
    for name in (FLASH_3, CUDNN):
        for x in out:
            x.fill_(torch.nan)
        world, _ = there(name)
        with world:
            assert local_attention(q, k, v, spec=CAUSAL, out=out) is out
            with pytest.raises(OperatorError, match=r"^local_attention: out\.lse must be torch.float32 \[2, 6, 23\]"):
                local_attention(q, k, v, out=out._replace(lse=out.lse[0]))
        compare(out, q, k, v, CAUSAL)
        assert room[..., :2].isnan().all() and room[..., 18:].isnan().all()


@pytest.mark.parametrize("name", DOUBLES)
@pytest.mark.parametrize(
    "options",
    [
        {"exact": "float32"},
        {"spec": Spec(window=3)},
        {"spec": Spec(softcap=30.0)},
        {"spec": Spec(alibi_slopes=[0.5] * 6)},
        {"spec": Spec(sinks=[0.0] * 6)},
        {"kv_mask": np.ones(31, bool)},
        {"kv_lengths": [31]},
        {"block_tables": [[0]], "kv_lengths": [31]},
    ],
    ids=str,
)
def test_what_no_library_takes_is_ours(name, options):
    q, k, v = tensors((1, 3, 2, 20 if name == CUDNN else 3, 31, 64, 64), torch.bfloat16)
    world, double = there(name)
    with world:
        local_attention(q, k, v)
        with pytest.raises(OursError):
            local_attention(q, k, v, **options)
        for change in ({"q": q.float()}, {"k": k[:, :, :0], "v": v[:, :, :0]}, {"v": v[:, :, :30]}, {"k": k[0]}):
            given = {"q": q, "k": k, "v": v, **change}
            with pytest.raises(OursError):
                local_attention(given["q"], given["k"], given["v"])
        with pytest.raises(OursError):
            local_attention(q.clone().requires_grad_(), k, v)
    assert len(double.calls) == 1


def test_exact_is_one_of_two():
    with pytest.raises(OperatorError, match=r'^local_attention: exact must be "float32" or None, got \'bfloat16\''):
        local_attention(*arrays((1, 1, 1, 1, 1, 8, 8)), exact="bfloat16")


@pytest.mark.parametrize("name", DOUBLES)
def test_a_wrong_base_or_alignment_is_found(name):
    """What these tests are for: doubles of another convention do not pass."""
    shape = (1, 3, 2, 20 if name == CUDNN else 5, 31, 64, 64)
    aligned = {"bottom_right": True} if name == CUDNN else {"top_left": True}
    faults = [{"ln": 1.0 if name == FLASHINFER else 1 / math.log(2)}]
    faults += [] if name == CUDNN else [aligned]  # it gets squares alone, on which both agree
    q, k, v = tensors(shape, torch.bfloat16)
    for fault in faults:
        world, _ = there(name, **fault)
        with world:
            got = local_attention(q, k, v, spec=CAUSAL)
        with pytest.raises(AssertionError):
            compare(got, q, k, v, CAUSAL)
    if name == CUDNN:
        world, double = there(name, **aligned)
        with world:
            compare(local_attention(q, k, v, spec=CAUSAL), q, k, v, CAUSAL)
        assert double.calls == [False, True]  # the keys that all see, and the square


@pytest.fixture
def torch_alone(monkeypatch):
    """A CPU without AMX, the compiled part not built; the names of the kernels that run."""
    chosen = []
    real = sys.modules["attention.local.dispatch"]._library
    here = Machine("cpu", "CPU", None, {"native": "not built", "torch.amx": "this processor has no AMX"})
    monkeypatch.setattr("attention.local.dispatch._library", lambda name: chosen.append(name) or real(name))
    monkeypatch.setattr("attention.local.dispatch.covers", lambda inputs: False)
    monkeypatch.setattr("attention.local.dispatch.machine_of", lambda device, *, gpu: here)
    return chosen


@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BITS], ids=str)
@pytest.mark.parametrize("spec", [None, CAUSAL], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 3, 2, 19, 23, 16, 16), (3, 2, 4, 17, 17, 20, 20), (2, 5, 1, 40, 77, 9, 9)], ids=str
)
def test_torch_on_the_cpu(shape, spec, dtype, torch_alone):
    q, k, v = tensors(shape, dtype, peak=1.0)
    got = local_attention(q, k, v, spec=spec)
    assert torch_alone == [TORCH_CPU]
    compare(got, q, k, v, spec, lse_atol=5e-6 if dtype == torch.float32 else 2e-5)
    exact = local_attention(q, k, v, spec=spec, exact="float32")
    assert len(torch_alone) == (2 if dtype == torch.float32 else 1)
    compare(Partial(*(x.float() for x in exact)), *(x.float() for x in (q, k, v)), spec)  # to 2e-6


def test_a_torch_without_grouped_heads_is_noticed(monkeypatch):
    """One that reads on in memory, as releases before grouped heads do, is not asked."""

    def reads_on(q, k, v, *options, scale):
        every = [torch.as_strided(x, (*q.shape[:2], *x.shape[2:]), x.stride()) for x in (k, v)]
        return real(q, *every, *options, scale=scale)

    real = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    assert machine.has_grouped_heads.__wrapped__()
    torch_ops = SimpleNamespace(aten=SimpleNamespace(_scaled_dot_product_flash_attention_for_cpu=reads_on))
    monkeypatch.setattr(machine.torch, "ops", torch_ops)
    assert not machine.has_grouped_heads.__wrapped__()


@pytest.mark.parametrize("n", [17, 23, 24, 33])
@pytest.mark.parametrize("spec", [None, CAUSAL], ids=str)
def test_nan_on_the_cpu(n, spec, torch_alone):
    q, k, v = tensors((2, 3, 2, 17, n, 16, 16), torch.float32)
    q[1, 4, 2] = math.nan
    got = local_attention(q, k, v, spec=spec)
    assert got.lse[1, 4, 2].isnan() and got.out[1, 4, 2].isnan().all()
    assert got.lse.isnan().sum() == 1 and got.out.isnan().sum() == 16
    assert set(torch_alone) == {TORCH_CPU}


def test_a_true_lse_of_0_stays(torch_alone):
    q, k, v = tensors((2, 3, 2, 20, 1, 16, 16), torch.float32)
    got = local_attention(torch.zeros_like(q), k, v)
    assert (got.lse == 0).all() and torch_alone == [TORCH_CPU]
    assert_close(got.out, v.repeat_interleave(2, 1).expand(2, 6, 20, 16).numpy(), atol=1e-7)


@pytest.mark.parametrize("sizes", [(2, 3, 2, 20, 0), (0, 3, 2, 20, 7)], ids=str)
def test_empty_arrays(sizes, torch_alone):
    # torch's kernel ends the process with SIGFPE on some of them.
    batch, kv_heads, group, q_len, _ = sizes
    got = local_attention(*tensors((*sizes, 16, 16), torch.float32))
    assert got.out.shape == (batch, kv_heads * group, q_len, 16)
    assert (got.out == 0).all() and (got.lse == -math.inf).all() and not torch_alone


def test_what_cudnn_returns():
    """torch's own meta function has the shapes of the kernel: lse with an axis of size 1 at the end."""
    q, k = (
        torch.empty(2, 6, 20, 16, device="meta", dtype=torch.float16),
        torch.empty(2, 3, 31, 16, device="meta").half(),
    )
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, k, None, True, 0.0, False, False, scale=0.3)
    assert out.shape == (2, 6, 20, 16) and out.dtype == torch.float16
    assert lse.shape == (2, 6, 20, 1) and lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("wire", "verify", "chosen"), [("bfloat16", False, 1), ("bfloat16", 1, 0), ("float32", False, 0)]
)
def test_shards_are_attended_by_others_where_the_wire_rounds_anyhow(monkeypatch, wire, verify, chosen):
    """On the CPU by torch's kernel, with AMX; a rank's partial is then one in 16 bits."""
    used = []
    here = Machine("cpu", "CPU with AMX")
    monkeypatch.setattr("attention.local.dispatch.machine_of", lambda device, *, gpu: here)
    real = sys.modules["attention.local.dispatch"]._library
    monkeypatch.setattr("attention.local.dispatch._library", lambda name: used.append(name) or real(name))
    q, k, v = tensors((1, 2, 2, 20, 40, 16, 16), torch.bfloat16)

    def decode(comm):
        mine = slice(20 * comm.rank, 20 * comm.rank + 20)
        return tree_decode(q, k[:, :, mine], v[:, :, mine], comm, wire=wire, verify=verify, return_lse=True)

    for found in run_local(decode, ranks=2):
        compare(Partial(found.out.float(), found.lse), q, k, v, lse_atol=2e-5)
    assert used == [TORCH_AMX] * 2 * chosen


def test_where_flash_attention_3_is_looked_for(monkeypatch):
    """Built from its directory it is a module at the top; packaged, one of a package."""
    monkeypatch.setattr(machine, "find_spec", lambda name: _find(name, {"flash_attn_3.flash_attn_interface"}))
    assert machine.module(machine.FLASH_3_MODULES) == "flash_attn_3.flash_attn_interface"
    monkeypatch.setattr(machine, "find_spec", lambda name: _find(name, {"flash_attn_interface"}))
    assert machine.module(machine.FLASH_3_MODULES) == "flash_attn_interface"
    monkeypatch.setattr(machine, "find_spec", lambda name: _find(name, set()))
    assert machine.module(machine.FLASH_3_MODULES) is None


def _find(name, installed):
    if name in installed:
        return SimpleNamespace(name=name)
    if "." in name and not any(other.startswith(name.partition(".")[0] + ".") for other in installed):
        raise ModuleNotFoundError(name=name.partition(".")[0])
    return None


@pytest.mark.parametrize("name", DOUBLES)
def test_the_library_itself(name):
    """On a card that has it: shapes that the table gives to it, through `local_attention`."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from attention.local.dispatch import _chosen, call_of
    from attention.visibility import Masking

    for shape in SHAPES[name]:
        for dtype in SIXTEEN_BITS:
            q, k, v = (x.cuda() for x in tensors(shape, dtype, peak=1.0))
            if _chosen(call_of((q, k, v), Spec(), Masking(), exact=False), q.device) != name:
                pytest.skip(f"{name} is not chosen on this machine")
            for spec in (Spec(), CAUSAL) if shape[3] <= shape[4] else (Spec(),):
                got = local_attention(q, k, v, spec=spec)
                compare(Partial(got.out.cpu(), got.lse.cpu()), q.cpu(), k.cpu(), v.cpu(), spec, lse_atol=1e-3)
