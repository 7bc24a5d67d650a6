import numpy as np
import pytest
import torch

from attention import Spec
from attention.gpu import prefill
from attention.gpu.prefill import prefill_packed
from attention.partial import Partial
from tests.attention.gpu.prefill_cases import assert_partial, expected, tensors, use_tile
from topocomm import OperatorError

pytestmark = pytest.mark.long
CAUSAL = Spec(causal=True)


def packed(lengths_q, lengths_k, *, kv_heads=1, group=2, d=16, d_v=None, dtype=torch.float32):
    """(q, k, v, cu_seqlens_q, cu_seqlens_k)."""
    begins = [np.cumsum([0, *x]) for x in (lengths_q, lengths_k)]
    dense = tensors(1, kv_heads, group, int(begins[0][-1]), int(begins[1][-1]), d, d_v, dtype=dtype)
    return (*(x[0].transpose(0, 1).contiguous() for x in dense), *(torch.from_numpy(x).int() for x in begins))


def check_packed(q, k, v, cu_q, cu_k, *, spec=None, **options):
    got = prefill_packed(q, k, v, cu_q, cu_k, spec=spec, **options)
    for place in range(len(cu_q) - 1):
        rows, keys = (slice(int(x[place]), int(x[place + 1])) for x in (cu_q, cu_k))
        one = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        found = Partial(got.out[rows].transpose(0, 1)[None], got.lse[rows].transpose(0, 1)[None])
        assert_partial(found, expected(*one, spec=spec), v)
    return got


@pytest.mark.parametrize("tile", [(16, 16), (64, 32)], ids=str)
@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        CAUSAL,
        Spec(causal=True, window=7),
        Spec(window=5),
        Spec(causal=True, softcap=2.0, alibi_slopes=(0.3, 0.1)),
    ],
    ids=["plain", "causal", "sliding", "both", "all"],
)
def test_sequences_of_any_lengths(monkeypatch, tile, spec):
    use_tile(monkeypatch, *tile)
    check_packed(*packed([17, 0, 1, 33, 5, 0], [40, 9, 1, 20, 0, 0]), spec=spec)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_dtypes_and_heads(monkeypatch, dtype):
    use_tile(monkeypatch, 32, 32)
    check_packed(*packed([20, 3, 40], [20, 33, 70], kv_heads=2, group=3, d=80, d_v=24, dtype=dtype), spec=CAUSAL)


def test_neighbours_of_a_sequence_do_not_matter(monkeypatch):
    use_tile(monkeypatch, 32, 32)
    q, k, v, cu_q, cu_k = packed([20, 20, 20], [25, 33, 10])
    for x in (k, v):
        x[:25], x[58:] = torch.nan, torch.nan
    got = prefill_packed(q, k, v, cu_q, cu_k)
    one = [x.transpose(0, 1)[None] for x in (q[20:40], k[25:58], v[25:58])]
    found = Partial(got.out[20:40].transpose(0, 1)[None], got.lse[20:40].transpose(0, 1)[None])
    assert_partial(found, expected(*one), v[25:58])


def test_the_longest_may_be_told(monkeypatch):
    use_tile(monkeypatch, 16, 32)
    inputs = packed([17, 40, 2], [17, 40, 2])
    exact = check_packed(*inputs, spec=CAUSAL)
    for longest in (40, 41, 1000):
        got = check_packed(*inputs, spec=CAUSAL, longest_q=longest)
        assert torch.equal(got.out, exact.out)


def test_nothing_to_do():
    q, k, v, cu_q, cu_k = packed([0, 0], [3, 0])
    got = prefill_packed(q, k, v, cu_q, cu_k)
    assert got.out.shape == (0, 2, 16) and got.lse.shape == (0, 2)
    none = prefill_packed(q, k[:0], v[:0], [0], [0])
    assert none.out.shape == (0, 2, 16)


def test_the_same_as_padded(monkeypatch):
    use_tile(monkeypatch, 16, 16)
    q, k, v, cu_q, cu_k = packed([20, 20], [33, 21])
    got = prefill_packed(q, k, v, cu_q, cu_k, spec=CAUSAL)
    dense = [torch.full((2, x.shape[1], rows, 16), torch.nan) for x, rows in ((q, 20), (k, 33), (v, 33))]
    for entry in range(2):
        for whole, x, begins in zip(dense, (q, k, v), (cu_q, cu_k, cu_k), strict=True):
            rows = slice(int(begins[entry]), int(begins[entry + 1]))
            whole[entry, :, : rows.stop - rows.start] = x[rows].transpose(0, 1)
    padded = prefill.prefill_partial(*dense, spec=CAUSAL, kv_lengths=[33, 21])
    for entry in range(2):
        rows = slice(20 * entry, 20 * entry + 20)
        assert torch.equal(got.out[rows].transpose(0, 1), padded.out[entry])
        assert torch.equal(got.lse[rows].transpose(0, 1), padded.lse[entry])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cu_seqlens_q": [0, 5, 21]}, "cu_seqlens_q must ascend from 0 to 20, the rows given; got [0, 5, 21]"),
        ({"cu_seqlens_q": [1, 5, 20]}, "cu_seqlens_q must ascend from 0 to 20"),
        ({"cu_seqlens_k": [0, 31, 30]}, "cu_seqlens_k must ascend from 0 to 30"),
        ({"cu_seqlens_k": [0, 30]}, "must have one length, sequences + 1; got 3 and 2"),
        ({"cu_seqlens_k": [0.0, 3.0, 30.0]}, "cu_seqlens_k must be int32 [sequences + 1], got torch.float32 [3]"),
        ({"cu_seqlens_q": torch.zeros(0, dtype=torch.int32)}, "cu_seqlens_q must be int32 [sequences + 1]"),
        ({"longest_q": 14}, "longest_q must be at least the queries of the longest sequence, 15; got 14"),
        ({"longest_q": True}, "longest_q must be at least"),
        ({"k": torch.zeros(31, 1, 16)}, "k and v must agree in [total_k, kv_heads], got"),
        ({"q": torch.zeros(1, 20, 2, 16)}, "q must be [total_q, heads, d], got shape [1, 20, 2, 16]"),
        ({"k": torch.zeros(30, 16)}, "k must be [total_k, kv_heads, d], got shape [30, 16]"),
        ({"spec": Spec(sinks=(1.0, 2.0))}, "spec.sinks are counted once"),
        ({"merge_into": Partial(torch.zeros(20, 2, 16), torch.zeros(2, 20))}, "merge_into.lse must be float32 [20, 2]"),
    ],
)
def test_errors(changed, said):
    q, k, v, cu_q, cu_k = packed([5, 15], [3, 27])
    arguments = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, **changed}
    with pytest.raises(OperatorError) as error:
        prefill_packed(**arguments)
    assert str(error.value).startswith("prefill_packed: ")
    assert said in str(error.value)
