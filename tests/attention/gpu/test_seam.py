"""What attention.local hands to kernels, and what importing costs."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from attention import Partial, Spec, gpu
from attention.arrays import check_inputs
from attention.gpu.prefill import prefill
from attention.ring.ring_layout import Parts
from attention.visibility import Masking
from tests.attention.gpu.prefill_cases import assert_partial, expected, tensors, use_tile
from topocomm import MissingExtraError, OperatorError

CAUSAL = Spec(causal=True)


@pytest.mark.parametrize("q_len", [5, 33])
@pytest.mark.parametrize(
    ("spec", "given", "lists"),
    [
        (Spec(), {}, False),
        (CAUSAL, {}, False),
        (CAUSAL, {"q_positions": "range", "kv_positions": np.arange(40)}, False),
        (Spec(window=9), {"q_positions": "range", "kv_positions": np.arange(40)[::-1].copy()}, True),
        (Spec(), {"kv_mask": np.arange(40) % 3 > 0}, True),
        (CAUSAL, {"kv_lengths": [40, 31]}, True),
    ],
)
def test_checked_inputs(monkeypatch, spec, given, lists, q_len):
    use_tile(monkeypatch, 16, 16)
    if not lists:
        monkeypatch.setattr(prefill, "block_lists_of", None)
    if given.get("q_positions") == "range":
        given = {**given, "q_positions": np.arange(q_len) + 4}
    q, k, v = tensors(2, 1, 2, q_len, 40, 16)
    inputs = check_inputs("test", q, k, v, spec=spec, masking=Masking(**given))
    result = Partial(torch.full((2, 2, q_len, 16), torch.nan), torch.full((2, 2, q_len), torch.nan))
    calls = []
    gpu.attend(inputs, result, between=lambda: calls.append(1))
    assert_partial(result, expected(q, k, v, spec=spec, **given), v)
    assert calls == [1]


def test_the_blocks_of_a_ring_in_zigzag_need_no_lists(monkeypatch):
    monkeypatch.setattr(prefill, "block_lists_of", None)
    q, k, v = tensors(1, 1, 2, 40, 40, 16)
    chunks = torch.arange(4 * 20).view(4, 20)
    positions = [torch.cat([chunks[rank], chunks[3 - rank]]) for rank in range(2)]
    halves = [slice(0, 20), slice(20, 40)]
    parts = Parts(1, CAUSAL, positions, [halves, halves])
    for source in range(2):
        blocks = parts.blocks(source)
        assert len(blocks) == (3 if source else 2)
        for rows, part, seen in blocks:
            arrays = q[:, :, rows], k[:, :, part], v[:, :, part]
            inputs = check_inputs("test", *arrays, spec=CAUSAL, masking=Masking())
            object.__setattr__(inputs, "visibility", seen)
            result = Partial(torch.full((1, 2, 20, 16), torch.nan), torch.full((1, 2, 20), torch.nan))
            gpu.attend(inputs, result)
            at = {"q_positions": positions[1][rows].numpy(), "kv_positions": positions[source][part].numpy()}
            assert_partial(result, expected(*arrays, spec=CAUSAL, **at), v)


def test_local_partial_writes_into_out_and_names_the_function():
    q, k, v = tensors(1, 1, 2, 20, 40, 16)
    out = Partial(torch.full((1, 2, 20, 16), torch.nan), torch.full((1, 2, 20), torch.nan))
    found = gpu.local_partial("local_attention", (q, k, v), CAUSAL, Masking(), out)
    assert found.out is out.out and found.lse is out.lse
    assert_partial(out, expected(q, k, v, spec=CAUSAL), v)
    with pytest.raises(OperatorError, match=r"^local_attention: out\.lse must be float32 \[1, 2, 20\]"):
        gpu.local_partial("local_attention", (q, k, v), CAUSAL, Masking(), out._replace(lse=out.lse[0]))
    with pytest.raises(OperatorError, match=r"^local_attention: block_tables are not covered on GPUs"):
        gpu.local_partial("local_attention", (q, k, v), CAUSAL, Masking(block_tables=[[0]]))


def test_without_triton(monkeypatch):
    for name in [x for x in sys.modules if x.startswith("attention.gpu.prefill.prefill")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sys.modules["attention.gpu.prefill"], "prefill")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match="triton"):
        gpu.local_partial("local_attention", tensors(1, 1, 1, 20, 4, 16), CAUSAL, Masking())


def test_importing_the_package_loads_neither_torch_nor_triton():
    said = "import sys, attention.gpu; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("where", [{}, {"kv_lengths": [40, 31]}, {"kv_mask": np.arange(40) % 3 > 0}])
def test_few_queries_go_to_the_decode_kernel(monkeypatch, where):
    monkeypatch.setattr(prefill, "_launch", None)
    q, k, v = tensors(2, 1, 2, 3, 40, 16)
    spec = CAUSAL if "kv_mask" not in where else Spec()
    assert_partial(gpu.local_partial("f", (q, k, v), spec, Masking(**where)), expected(q, k, v, spec=spec, **where), v)


def test_pages_of_few_queries():
    q, k, v = tensors(1, 1, 2, 1, 40, 16)
    pages = [x.view(1, -1, 4, 10, 16)[0].transpose(0, 1).contiguous() for x in (k, v)]
    masking = Masking(kv_lengths=[33], block_tables=[[0, 1, 2, 3]])
    found = gpu.local_partial("f", (q, *pages), Spec(), masking)
    assert_partial(found, expected(q, k, v, kv_lengths=[33]), v)
    with pytest.raises(OperatorError, match=r"^f: block_tables need kv_lengths"):
        gpu.local_partial("f", (q, *pages), Spec(), Masking(block_tables=[[0, 1, 2, 3]]))
