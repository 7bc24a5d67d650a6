"""The attention kernel in C, for every kind of processor that this machine runs, against formulas in float64."""

import numpy as np
import pytest
import torch

from attention import Spec, reference_attention
from attention.visibility import HIDDEN, LOWEST

native = pytest.importorskip("attention.kernels._native")


def capsules(x):
    """What the kernel takes of arrays, tensors and tuples of them."""
    if isinstance(x, tuple):
        return tuple(map(capsules, x))
    return x.__dlpack__() if isinstance(x, (np.ndarray, torch.Tensor)) else x


def attend(*arrays, **options):
    native.attend(*map(capsules, arrays), **{name: capsules(x) for name, x in options.items()})


def runs(processor):
    """Whether this machine is one."""
    try:
        attend(*[torch.zeros(1, 1, 1, 1)] * 4, torch.zeros(1), 1.0, processor=processor)
    except ValueError:
        return False
    return True


PROCESSORS = [name for name in ("avx512", "avx2", "baseline") if runs(name)]


@pytest.fixture(params=PROCESSORS)
def processor(request):
    return request.param


def run(q, k, v, scale=1.0, segments=None, **options):
    """(out, lse) of tensors, filled with NaN before the call."""
    count = () if segments is None else (len(segments),)
    out = np.full((*count, *q.shape[:3], v.shape[3]), np.nan, np.float32)
    lse = np.full(out.shape[:-1], np.nan, np.float32)
    attend(q, k, v, out, lse, scale, segments=segments, **options)
    return out, lse


def tensors(q_shape, kv_heads, n, d_v, dtype=torch.float32, seed=0):
    batch, _, _, d = q_shape
    rng = np.random.default_rng(seed)
    shapes = q_shape, (batch, kv_heads, n, d), (batch, kv_heads, n, d_v)
    return [torch.from_numpy(rng.standard_normal(shape, np.float32)).to(dtype) for shape in shapes]


def exact(q, k, v, **options):
    return reference_attention(*(x.double().numpy() for x in (q, k, v)), **options)


def assert_near(got, want, tolerance=1e-5):
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 3, 2), (1, 5, 16)], ids=str)
def test_widths_around_whole_vectors(processor, dtype, heads):
    kv_heads, group, q_len = heads
    for d, d_v, n in ((1, 1, 1), (3, 5, 2), (4, 8, 63), (7, 16, 64), (15, 17, 65), (33, 31, 66), (64, 80, 129)):
        q, k, v = tensors((2, kv_heads * group, q_len, d), kv_heads, n, d_v, dtype, seed=n)
        assert_near(run(q, k, v, 0.3, processor=processor), exact(q, k, v, spec=Spec(scale=0.3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 12, 13, 16, 17, 24, 25, 33, 64, 65])
def test_rows_in_groups_of_every_size(processor, dtype, rows):
    """Rows that share a key head go in groups of 1, 2, 4 or whole vectors, by their number and that of keys."""
    for n, d, d_v in ((47, 64, 64), (300, 33, 50), (257, 128, 96)):
        q, k, v = tensors((1, rows, 1, d), 1, n, d_v, dtype, seed=rows)
        assert_near(run(q, k, v, 0.2, processor=processor), exact(q, k, v, spec=Spec(scale=0.2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [2, 7, 33])
def test_rows_of_a_group_see_other_keys(processor, rows, dtype):
    """Windows apart by more than a block, and rows that see nothing; what no row sees is not a number."""
    q, k, v = tensors((1, 1, rows, 40), 1, 700, 30, dtype)
    ends = np.random.default_rng(rows).permutation(np.arange(rows) * 20 - 15)
    low, keys = ends - 8, np.arange(700)
    seen = ((keys >= low[:, None]) & (keys <= ends[:, None])).any(0)
    k[:, :, ~seen], v[:, :, ~seen] = torch.nan, torch.inf
    got = run(q, k, v, 0.2, visible=(low[None], ends[None], ends[None], keys[None]), processor=processor)
    k[:, :, ~seen], v[:, :, ~seen] = 0, 0
    spec = Spec(scale=0.2, causal=True, window=9)
    want = exact(q, k, v, spec=spec, q_positions=ends, kv_positions=keys)
    assert_near(got, want)
    assert (want[1] == -np.inf).any() and (got[0][want[1] == -np.inf] == 0).all()


@pytest.mark.parametrize("rows", [8, 12, 40])
def test_rows_that_see_a_block_from_a_later_key_on(processor, rows):
    """A chunk of a prompt with a window: the last rows begin after the first, which see the blocks to come too."""
    q, k, v = tensors((1, 1, rows, 24), 1, 100 + rows, 19)
    queries, keys = 100 + np.arange(rows), np.arange(100 + rows)
    for window in range(80, 92):
        visible = queries[None] - window + 1, queries[None], queries[None], keys[None]
        got = run(q, k, v, 0.2, visible=visible, processor=processor)
        spec = Spec(scale=0.2, causal=True, window=window)
        assert_near(got, exact(q, k, v, spec=spec, q_positions=queries, kv_positions=keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [4, 9, 16, 40])
def test_maxima_rise_in_one_row_at_a_time(processor, rows, dtype):
    """By so much that a weight relative to the maximum before would be infinite."""
    n = 48 * rows
    k = torch.zeros(1, 1, n, rows, dtype=dtype)
    for row, key in enumerate(np.random.default_rng(rows).permutation(rows) * 48 + 7):
        k[0, 0, key, row] = 200
    q, (_, _, v) = torch.eye(rows, dtype=dtype)[None, :, None], tensors((1, 1, 1, 1), 1, n, 21, dtype)
    assert_near(run(q, k, v, processor=processor), exact(q, k, v, spec=Spec(scale=1.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [2, 7, 40])
def test_rows_alike_have_the_same_bits(processor, rows, dtype):
    """Whether a group takes keys as they lie or as one before widened them."""
    q, k, v = tensors((1, 1, 1, 75), 1, 300, 93, dtype)
    out, lse = run(q.expand(1, rows, 1, 75), k, v, 0.2, processor=processor)
    assert (out == out[:, :1]).all() and (lse == lse[:, :1]).all()


def test_wide_heads_of_many_rows(processor):
    q, k, v = tensors((1, 70, 1, 576), 1, 130, 512)
    assert_near(run(q, k, v, 1 / 24, processor=processor), exact(q, k, v, spec=Spec(scale=1 / 24)))


def test_exp_is_within_some_ulp_down_to_where_it_vanishes(processor):
    """Two keys of the scores 0 and x: out is (1, e^x) / (1 + e^x)."""
    x = np.concatenate([np.linspace(-86.98, 0, 200_001), [-0.0, -1e-30, -17.5, -86.98]]).astype(np.float32)
    q = torch.from_numpy(x).view(1, 1, -1, 1)
    k, v = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1), torch.eye(2).view(1, 1, 2, 2)
    out, _ = run(q, k, v, processor=processor)
    one, power = out[0, 0].astype(np.float64).T
    want = np.exp(x.astype(np.float64))
    ulps = np.abs(power / one - want) / np.spacing(want.astype(np.float32))
    assert ulps[x > -20].max() <= 2  # one of the exponential, and those of two quotients
    assert (ulps <= 1 - x / 20)[x < -20].all()  # the sum is 1
    gone = torch.tensor([-87.0, -1000.0, -torch.inf]).view(1, 1, -1, 1)
    assert run(gone[:, :, :2], k, v, processor=processor)[0][0, 0, :, 1].tolist() == [0, 0]


def test_tanh_is_within_3e_7_of_its_value(processor):
    """One key: with a cap of 1 lse is tanh of the query."""
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-30, 1, 1000), [np.inf, -np.inf, 0]])
    x = x.astype(np.float32)
    key = torch.ones(1, 1, 1, 1)
    _, lse = run(torch.from_numpy(x).view(1, 1, -1, 1), key, key, softcap=1.0, processor=processor)
    want = np.tanh(x.astype(np.float64))
    assert (np.abs(lse[0, 0] - want) <= 3e-7 * np.abs(want)).all()
    nan = run(torch.full((1, 1, 1, 1), torch.nan), key, key, softcap=1.0, processor=processor)
    assert np.isnan(nan[0]).all() and np.isnan(nan[1]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [1 << 16, 15])
def test_every_16_bit_number_is_widened_exactly(processor, dtype, width):
    """One key: out is its value. Rows of 15 are shorter than a vector of AVX-512, and no multiple of one."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    v = numbers[: (1 << 16) // width * width].view(-1, 1, 1, width)
    ones = torch.ones(len(v), 1, 1, 1, dtype=dtype)
    out, _ = run(ones, ones, v, processor=processor)
    want = v.float().numpy()
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    kept = ~np.isnan(want) & (want != 0)  # the sum of a zero of either sign is +0
    assert out[kept].tobytes() == want[kept].tobytes() and (out[want == 0] == 0).all()


def test_rows_that_nobody_reads_may_hold_anything(processor):
    """Hidden keys, keys that no segment has, pages that no table names, and what lies behind a row's last element."""
    q, k, v = tensors((2, 4, 2, 9), 2, 200, 10)
    want = exact(q, k[:, :, 50:150], v[:, :, 50:150], spec=Spec(scale=1.0))
    dirty = []
    for x in (k, v):
        room = torch.full((*x.shape[:3], x.shape[3] + 7), torch.nan)
        room[..., : x.shape[3]] = x
        room[:, :, :50], room[:, :, 150:] = torch.nan, torch.inf
        dirty.append(room[..., : x.shape[3]])
    positions = np.arange(200)[None]
    hidden = np.where((positions < 50) | (positions >= 150), HIDDEN, positions)
    rules = (np.full((1, 2), LOWEST), np.full((1, 2), HIDDEN - 1), np.zeros((1, 2), np.int64))
    assert_near(run(q, *dirty, visible=(*rules, hidden), processor=processor), want)
    got = run(q, *dirty, segments=np.array([[50, 150], [7, 7]]), processor=processor)
    assert_near([x[0] for x in got], want)
    assert (got[0][1] == 0).all() and (got[1][1] == -np.inf).all()
    pages = np.arange(5, 15)[None] + np.array([[0], [20]])  # of 10 keys: 20 pages for each entry
    laid = [x.unflatten(2, (20, 10)).permute(0, 2, 1, 3, 4).flatten(0, 1) for x in dirty]
    assert_near(run(q, *laid, pages=pages, processor=processor), want)


def test_rules_for_each_row_of_a_group(processor):
    q, k, v = tensors((2, 6, 5, 16), 2, 150, 16)
    rng = np.random.default_rng(1)
    at = rng.permuted(np.tile(np.arange(150), (2, 1)), axis=1)
    queries = rng.integers(0, 150, (2, 5))
    queries[1, 2] = -1
    spec = Spec(causal=True, window=40, alibi_slopes=rng.uniform(0, 0.3, 6), softcap=3.0, scale=1.0)
    slopes = np.array(spec.alibi_slopes, np.float32)
    visible = queries - 39, queries, queries, at
    got = run(q, k, v, softcap=3.0, slopes=slopes, visible=visible, processor=processor)
    want = exact(q, k, v, spec=spec, q_positions=queries, kv_positions=at)
    assert (got[1][1, :, 2] == -np.inf).all()
    assert_near(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 5, 70])
def test_prompts_whose_rows_see_parts_of_blocks(processor, dtype, window):
    """Runs of positions, with gaps; some rows of a tile see nothing, blocks that no row sees are not a number."""
    keys = np.r_[300:390, 0:100, 1000:1080, 100:130][None]
    queries = np.r_[95:130, -3:2, 340:360][None]
    q, k, v = tensors((2, 4, queries.size, 24), 2, keys.size, 19, dtype)
    spec = Spec(causal=True, window=window, scale=0.2)
    low = queries - (10**6 if window is None else window - 1)
    unseen = torch.from_numpy(~((keys >= low.T) & (keys <= queries.T)).any(0))
    k[:, :, unseen], v[:, :, unseen] = torch.nan, torch.inf
    want = exact(q, k, v, spec=spec, q_positions=queries[0], kv_positions=keys[0])
    assert (want[1] == -np.inf).any()
    strided = np.stack([keys, keys], -1)[..., 0]
    for at in (keys, strided):
        got = run(q, k, v, 0.2, visible=(low, queries, queries, at), processor=processor)
        assert_near(got, want)
        assert (got[1] == -np.inf).tolist() == (want[1] == -np.inf).tolist()


@pytest.mark.parametrize("threads", [1, 2, 5, 2000])
def test_threads_and_items_do_not_change_bits(processor, threads):
    q, k, v = tensors((2, 6, 30, 20), 2, 300, 24)  # 90 rows of a key head: two tiles
    segments = np.array([[0, 100], [100, 300], [300, 300]])
    want = run(q, k, v, segments=segments, processor=processor)
    got = run(q, k, v, segments=segments, threads=threads, processor=processor)
    parts = [np.full_like(x, np.nan) for x in want]
    options = {"segments": segments, "threads": threads, "processor": processor}
    for first, end in ((0, 5), (5, 5), (5, 24)):
        attend(q, k, v, *parts, 1.0, first=first, end=end, **options)
    for wanted, whole, cut in zip(want, got, parts, strict=True):
        assert wanted.tobytes() == whole.tobytes() == cut.tobytes()


def test_segments_have_the_bits_of_their_keys_alone(processor):
    q, k, v = tensors((1, 4, 1, 40), 2, 400, 40)
    order = np.random.default_rng(0).permutation(400)[None]
    whole = run(q, k, v, order=order, segments=np.array([[10, 333]]), processor=processor)
    index = torch.from_numpy(order[0, 10:333])
    alone = run(q, k[:, :, index].contiguous(), v[:, :, index].contiguous(), processor=processor)
    assert whole[0][0].tobytes() == alone[0].tobytes() and whole[1][0].tobytes() == alone[1].tobytes()


BASE = {"q": torch.zeros(2, 6, 3, 8), "k": torch.zeros(2, 3, 5, 8), "v": torch.zeros(2, 3, 5, 4)}
RULES = [np.zeros((1, 3), np.int64)] * 3 + [np.zeros((1, 5), np.int64)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 6, 3)}, "q must have 4 axes, got 3"),
        ({"k": torch.zeros(2, 3, 5, 8, dtype=torch.float64)}, "k must be float32, bfloat16 or float16"),
        ({"q": torch.zeros(2, 6, 3, 8, dtype=torch.int32)}, "q must be float32, bfloat16 or float16"),
        ({"v": torch.zeros(2, 3, 6, 4)}, "do not fit each other"),
        ({"v": torch.zeros(2, 3, 5, 4, dtype=torch.float16)}, "do not fit each other"),
        ({"k": torch.zeros(2, 3, 5, 9)}, "do not fit each other"),
        ({"k": torch.zeros(1, 3, 5, 8), "v": torch.zeros(1, 3, 5, 4)}, "do not fit each other"),
        ({"k": torch.zeros(2, 4, 5, 8), "v": torch.zeros(2, 4, 5, 4)}, "do not fit each other"),
        ({"k": torch.zeros(2, 0, 5, 8), "v": torch.zeros(2, 0, 5, 4)}, "do not fit each other"),
        ({"k": torch.zeros(2, 3, 5, 16)[..., ::2]}, "do not fit each other"),
        (
            {"q": torch.zeros(1).expand(2, 6, 3, 1 << 31), "k": torch.zeros(1).expand(2, 3, 5, 1 << 31)},
            "do not fit each other",
        ),
        ({"out": np.zeros((2, 6, 3, 5), np.float32)}, "out must have 144 aligned contiguous items"),
        ({"out": np.zeros((2, 6, 3, 4))}, "out must be float32"),
        ({"out": np.frombuffer(bytes(577), np.uint8)[1:].view(np.float32)}, "readonly"),
        ({"out": np.zeros(577, np.uint8)[1:].view(np.float32)}, "aligned"),
        ({"out": np.zeros((2, 6, 4, 3), np.float32).swapaxes(2, 3)}, "contiguous"),
        ({"lse": np.zeros((2, 6, 2), np.float32)}, "lse must have 36 aligned"),
        ({"slopes": np.zeros(6, np.float32)}, "slopes need positions"),
        ({"slopes": np.zeros(5, np.float32), "visible": tuple(RULES)}, "slopes must have 6"),
        ({"visible": tuple(RULES[:3])}, "4"),
        ({"visible": (*RULES[:3], np.zeros((1, 6), np.int64))}, "positions must be"),
        ({"visible": (*RULES[:2], np.zeros((3, 3), np.int64), RULES[3])}, "queries must be"),
        ({"visible": (np.zeros(3, np.int64), *RULES[1:])}, "low must have 2 axes"),
        ({"visible": (*RULES[:3], np.zeros((1, 5), np.int32))}, "positions must be int64"),
        ({"order": np.zeros((3, 5), np.int64)}, "order must be"),
        ({"order": np.array([[0, 5]])}, "order or pages has a number that"),
        ({"order": np.array([[0, -1]])}, "order or pages has a number that"),
        ({"pages": np.zeros((3, 2), np.int64)}, "pages must be"),
        ({"pages": np.array([[0, 2], [0, 0]])}, "order or pages has a number that"),
        ({"pages": np.array([[0, 0], [-1, 0]])}, "order or pages has a number that"),
        ({"segments": np.zeros((3, 3), np.int64)}, "segments must be"),
        ({"segments": np.array([[0, 6]])}, "segments must lie from 0 to 5"),
        ({"segments": np.array([[-1, 2]])}, "segments must lie from 0 to 5"),
        ({"segments": np.array([[0, 2], [0, 1]])}, "out must have 288"),
        ({"first": -1}, "items from -1 to 6 of 6"),
        ({"first": 4, "end": 3}, "items from 4 to 3 of 6"),
        ({"end": 7}, "items from 0 to 7 of 6"),
        ({"processor": "abacus"}, "no kernel for processor abacus"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_what_does_not_fit_is_refused(change, message):
    given = {**BASE, "out": np.zeros((2, 6, 3, 4), np.float32), "lse": np.zeros((2, 6, 3), np.float32), **change}
    arrays = [given.pop(name) for name in ("q", "k", "v", "out", "lse")]
    with pytest.raises((ValueError, TypeError, BufferError), match=message):
        attend(*arrays, 1.0, **given)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="PyCapsule"):
        native.attend(1, 2, 3, 4, 5, 1.0)


def test_empty_arrays(processor):
    for batch, q_len, n in ((0, 1, 5), (2, 0, 5), (2, 1, 0)):
        q, k, v = torch.zeros(batch, 2, q_len, 8), torch.zeros(batch, 1, n, 8), torch.zeros(batch, 1, n, 4)
        out, lse = run(q, k, v, processor=processor)
        assert (out == 0).all() and (lse == -np.inf).all()
