"""The decode kernel against the float64 formula: each feature alone, and random ones together."""

import math

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

from attention import Spec
from attention.gpu.decode import arrivals, decode, decode_inputs, decode_table
from attention.gpu.decode.decode import decode_partial
from attention.partial import Partial
from tests.attention.gpu.inputs import DEVICE, assert_close, formula, made, paged, poisoned
from tests.thinning import thinned

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PLAIN = Spec()
HEAD_DIMS = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (1, 3), (24, 72))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NumPy


@pytest.fixture
def splits(monkeypatch):
    """Says into how many splits keys go."""

    def fix(count):
        decode._ready.clear()
        monkeypatch.setattr(decode, "splits_for", lambda n, programs, cores: count)

    return fix


def check(q, k, v, spec=PLAIN, *, kv=None, **where):
    """The kernel on q, k, v, or on other arrays that hold the same keys, into poisoned memory."""
    found = Partial(*poisoned(q, v))
    tables = where.pop("block_tables", None)
    assert decode_partial(q, *(kv or (k, v)), spec=spec, out=found, block_tables=tables, **where) is found
    assert_close(found, formula(q, k, v, spec, **where))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "d_v"), thinned(HEAD_DIMS))
def test_head_dims_and_dtypes(dtype, d, d_v, splits):
    splits(2)
    check(*made(1, 2, 6, 2, 1, 131, d, d_v, dtype))


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("count", thinned([1, 2, 3, 8]))
def test_keys_and_splits(n, count, splits):
    """More splits than blocks leave some without keys."""
    splits(count)
    check(*made(n, 2, 4, 2, 1, n, 64, 64))


@pytest.mark.parametrize("q_len", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_queries_and_groups(q_len, group, splits):
    """Of 16 queries of 8 heads a key head two tiles are made."""
    splits(2)
    check(*made(q_len, 1, 2 * group, 2, q_len, 70, 32, 32), Spec(causal=True))


@pytest.mark.parametrize(
    "spec",
    [
        Spec(scale=0.3),
        Spec(causal=True),
        Spec(causal=True, window=1),
        Spec(causal=True, window=40),
        Spec(window=7),
        Spec(softcap=2.0),
        Spec(alibi_slopes=(0.5, 0.25, 0.125, 0.0)),
        Spec(causal=True, window=50, softcap=3.0, alibi_slopes=(0.5, 0.25, 0.125, 0.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("positions", ["the last", "any"])
def test_specs(spec, positions, splits):
    splits(3)
    q, k, v = made(2, 2, 4, 2, 3, 90, 64, 64)
    where = {}
    if positions == "any":
        random = np.random.default_rng(3)
        where = {
            "q_positions": torch.from_numpy(random.integers(0, 100, (2, 3))).to(DEVICE),
            "kv_positions": torch.from_numpy(random.permutation(1000)[:90]).to(DEVICE),
        }
    check(q, k, v, spec, **where)


def test_positions_far_apart_and_beyond_32_bits():
    q, k, v = made(4, 1, 2, 1, 2, 40, 32, 32)
    far = 1 << 40
    keys = torch.arange(40, device=DEVICE) * 7 + far
    where = {"q_positions": torch.tensor([far + 100, far + 30], device=DEVICE), "kv_positions": keys}
    check(q, k, v, Spec(causal=True), **where)
    check(q, k, v, Spec(causal=True, window=50), **where)
    keys = keys.clone()
    keys[::3] = 1 << 61  # so far that 32 bits do not hold the distance
    keys[1::3] = -(1 << 61)
    check(q, k, v, Spec(causal=True), **{**where, "kv_positions": keys})


@pytest.mark.parametrize("dtype", thinned([torch.int32, torch.int64]))
def test_lengths_masks_and_pages(dtype, splits):
    splits(2)
    random = np.random.default_rng(5)
    q, k, v = made(5, 3, 4, 2, 2, 75, 32, 48)
    lengths = torch.tensor([75, 0, 33], device=DEVICE).to(dtype)
    mask = torch.from_numpy(random.random((3, 75)) < 0.6).to(DEVICE)
    check(q, k, v, kv_lengths=lengths)
    check(q, k, v, kv_mask=mask)
    check(q, k, v, kv_mask=mask[0])
    check(q, k, v, Spec(causal=True), kv_lengths=lengths, kv_mask=mask)
    for page in (1, 16, 20):
        *kv, tables = paged(random, k, v, page, dtype)
        check(q, k, v, Spec(causal=True, window=30), kv=kv, kv_lengths=lengths, block_tables=tables)


@pytest.mark.parametrize("dtype", thinned([torch.int32, torch.int64]))
@pytest.mark.parametrize("spec", [PLAIN, Spec(causal=True), Spec(causal=True, window=9)], ids=str)
@pytest.mark.parametrize("pages", [False, True])
def test_lengths_beyond_the_cache_and_below_0(dtype, spec, pages, splits):
    """As the capacity and as 0, bit for bit, with NaN behind the cache, and pages of NaN behind the tables."""
    splits(2)
    q, k, v = made(16, 3, 4, 2, 2, 48, 32, 32)
    kv, where = (k, v), {}
    if pages:
        *kv, tables = paged(np.random.default_rng(16), k, v, 16)
        unused = min(set(range(len(kv[0]))) - set(tables.flatten().tolist()))
        where["block_tables"] = torch.nn.functional.pad(tables, (0, 40), value=unused)[:, : tables.shape[1]]
    else:
        kv = [torch.cat([x, torch.full((3, 2, 640, 32), math.nan, device=DEVICE)], 2)[:, :, :48] for x in kv]
    within, beyond = torch.tensor([48, 0, 48]), torch.tensor([49, -5, 2**31 - 1 if dtype == torch.int32 else 2**40])
    wanted = check(q, k, v, spec, kv=kv, kv_lengths=within.to(dtype).to(DEVICE), **where)
    found = decode_partial(q, *kv, spec=spec, kv_lengths=beyond.to(dtype).to(DEVICE), **where)
    assert torch.equal(found.out, wanted.out) and torch.equal(found.lse, wanted.lse)


@pytest.fixture
def ranges(monkeypatch):
    """Says how many programs share the keys of entries with lengths, 16 keys a range at least."""
    for module in (decode, decode_table):
        monkeypatch.setattr(module, "KEYS_PER_SPLIT", 16)
    monkeypatch.setattr(decode, "cut_for", lambda problem: decode_table.Cut(16, 4, 2))

    def fix(programs):
        decode._ready.clear()
        monkeypatch.setattr(decode, "slots_of", lambda *told, **more: programs)

    return fix


@pytest.mark.parametrize("programs", thinned([1, 40, 3]))
def test_entries_of_different_lengths(programs, ranges):
    """One long entry among short ones, none, all; ranges end in tiles, at their ends, and hold several."""
    ranges(programs)
    random = np.random.default_rng(programs)
    q, k, v = made(programs, 5, 6, 2, 1, 150, 32, 48)
    for lengths in ([150, 1, 0, 16, 17], [0] * 5, [150] * 5, random.integers(0, 151, 5).tolist()):
        check(q, k, v, kv_lengths=torch.tensor(lengths, device=DEVICE))
        assert all((x == 0).all() for x in arrivals._of_streams.values())


@pytest.mark.parametrize("spec", [Spec(causal=True), Spec(causal=True, window=9), Spec(softcap=3.0)], ids=str)
@pytest.mark.parametrize("pages", [False, True])
def test_ranges_with_features(spec, pages, ranges):
    """Two tiles of rows, pages, windows and what is beyond them, which is NaN here."""
    ranges(5)
    q, k, v = made(20, 4, 8, 1, 3, 90, 32, 32)
    lengths = torch.tensor([90, 3, 0, 50], device=DEVICE)
    where = {}
    kv = [x.clone() for x in (k, v)]
    for entry, length in enumerate(lengths.tolist()):
        for x in kv:
            x[entry, :, length:] = math.nan
            if spec.window is not None:
                x[entry, :, : max(0, length - 2 - spec.window)] = math.nan
    if pages:
        *kv, where["block_tables"] = paged(np.random.default_rng(20), *kv, 16)
    check(q, k, v, spec, kv=kv, kv_lengths=lengths, **where)


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 40), marks=pytest.mark.soak)], ids=len)
def test_random_ranges(ranges, seeds):
    random = np.random.default_rng(len(seeds))
    for seed in seeds:
        ranges(int(random.choice([1, 3, 6, 16])))
        batch, n = int(random.choice([2, 3, 8])), int(random.choice([17, 64, 200]))
        group, q_len = int(random.choice([1, 4, 9])), int(random.choice([1, 2]))
        q, k, v = made(seed, batch, 2 * group, 2, q_len, n, 16, 80, DTYPES[seed % 3])
        given = random.choice([-2, 0, 1, n, n + 9, *random.integers(0, n + 1, 3)], batch)
        found = Partial(*poisoned(q, v))
        lengths = torch.from_numpy(given).to(DEVICE)
        decode_partial(q, k, v, spec=Spec(causal=bool(seed % 2)), kv_lengths=lengths, out=found)
        assert_close(found, formula(q, k, v, Spec(causal=bool(seed % 2)), kv_lengths=lengths.clamp(0, n)))
        again = decode_partial(q, k, v, spec=Spec(causal=bool(seed % 2)), kv_lengths=lengths)
        assert torch.equal(found.out, again.out) and torch.equal(found.lse, again.lse)


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 80), marks=pytest.mark.soak)], ids=len)
def test_many_random_calls(splits, seeds):
    """Everything that can be given together, shapes of all kinds, strided arrays."""
    random = np.random.default_rng(len(seeds))
    for seed in seeds:
        splits(int(random.choice([1, 2, 5])))
        batch, kv_heads, group = random.integers(1, 3), random.integers(1, 3), random.choice([1, 2, 4, 7])
        q_len, n = random.choice([1, 1, 2, 4, 16]), random.choice([0, 1, 17, 64, 150])
        d, d_v = random.choice([16, 40, 64, 80, 128]), random.choice([16, 64, 72])
        shape = [int(x) for x in (batch, kv_heads * group, kv_heads, q_len, n, d, d_v)]
        q, k, v = made(seed, *shape, DTYPES[seed % 3])
        if random.random() < 0.3:  # [batch, n, heads, d], as models have it
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        spec = Spec(
            causal=bool(random.random() < 0.4),
            window=int(random.choice([1, 3, 40])) if random.random() < 0.3 else None,
            softcap=5.0 if random.random() < 0.3 else None,
            alibi_slopes=tuple(random.random(shape[1])) if random.random() < 0.3 else None,
        )
        where = {}
        if random.random() < 0.4:
            where["kv_lengths"] = torch.from_numpy(random.integers(0, n + 1, batch)).to(DEVICE)
        elif random.random() < 0.5:
            where["q_positions"] = torch.from_numpy(random.integers(0, n + 5, (batch, q_len))).to(DEVICE)
            where["kv_positions"] = torch.from_numpy(random.permutation(n + 3)[:n]).to(DEVICE)
        if random.random() < 0.3:
            where["kv_mask"] = torch.from_numpy(random.random((batch, n)) < 0.7).to(DEVICE)
        check(q, k, v, spec, **where)


def test_what_nobody_sees_does_not_matter():
    q, k, v = made(8, 1, 2, 1, 2, 60, 32, 32)
    mask = torch.ones(60, dtype=torch.bool, device=DEVICE)
    mask[[3, 40]] = False
    clean = [x.clone() for x in (k, v)]
    for x, fill in ((k, math.nan), (v, math.nan), (v, math.inf)):
        x[:, :, ~mask] = fill
        found = decode_partial(q, k, v, kv_mask=mask)
        assert_close(found, formula(q, *clean, PLAIN, kv_mask=mask))
    late = Spec(causal=True)
    where = {"q_positions": torch.tensor([20, 10], device=DEVICE), "kv_positions": torch.arange(60, device=DEVICE)}
    k, v = (x.clone() for x in clean)
    k[:, :, 21:] = v[:, :, 21:] = math.nan
    assert_close(decode_partial(q, k, v, spec=late, **where), formula(q, *clean, late, **where))


def test_nan_that_is_seen_shows_and_stays_in_its_entry():
    q, k, v = made(9, 2, 2, 1, 1, 40, 32, 32)
    k[0, 0, 7] = math.nan
    found = decode_partial(q, k, v)
    assert found.out[0].isnan().all() and found.lse[0].isnan().all()
    assert_close(Partial(found.out[1:], found.lse[1:]), formula(q[1:], k[1:], v[1:], PLAIN))


def test_great_scores_do_not_overflow():
    q, k, v = made(10, 1, 2, 1, 1, 50, 32, 32)
    found = decode_partial(q * 300, k * 300, v)
    wanted = formula(q * 300, k * 300, v, PLAIN)
    assert np.abs(found.lse.cpu().numpy() - wanted.lse).max() <= 2e-6 * np.abs(wanted.lse).max()
    assert np.isfinite(found.out.cpu().numpy()).all()


@pytest.mark.parametrize("kind", decode_inputs.BYTES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_eight_bit_keys_with_scales(kind, dtype):
    q, k, v = made(11, 2, 4, 2, 1, 70, 64, 64, dtype)
    small_k, small_v = ((x.float() * 2).to(kind) for x in (k, v))
    scales = [torch.tensor(x, device=DEVICE) for x in ((0.5, 0.25), (2.0, 0.125))]
    found = decode_partial(q, small_k, small_v, k_scales=scales[0], v_scales=scales[1])
    wide = [x.double() * scale.double()[:, None, None] for x, scale in zip((small_k, small_v), scales, strict=True)]
    assert_close(found, formula(q, *wide, PLAIN))


@pytest.mark.parametrize("kind", [torch.float16, *decode_inputs.BYTES], ids=str)
def test_many_small_weights_beside_a_great_one_count(kind):
    """Weights of 2^-26 would be 0 in float16, and 4,000 of them are 6e-5 of the great one."""
    n = 4001
    q = torch.zeros(1, 1, 1, 16, dtype=torch.float16)
    q[..., 0] = 1.0
    k, v = torch.zeros(1, 1, n, 16), torch.full((1, 1, n, 16), 16.0)
    k[0, 0, 0, 0], v[0, 0, 0] = 16.0, 0.0
    spec = Spec(scale=26 * math.log(2) / 16)
    wide = [x.to(kind) for x in (k, v)]
    found = decode_partial(q, *wide, spec=spec)
    wanted = formula(q, *(x.double() for x in wide), spec)
    assert wanted.out.min() > 9e-4
    assert np.abs(found.out.numpy() / wanted.out - 1).max() <= 3e-6


@pytest.mark.parametrize("kind", decode_inputs.BYTES, ids=str)
@pytest.mark.parametrize("great", [2.0**-110, 1e-30, 1.0, 7e4, 1e30])
def test_queries_that_float16_does_not_hold(kind, great):
    """bfloat16 rows of any size beside each other, items 2^20 apart in one row."""
    q, k, v = made(23, 1, 4, 1, 1, 40, 80, 64, torch.bfloat16)
    q = q * torch.tensor([1.0, great, 2.0**-20, 0.0]).view(1, 4, 1, 1).to(q.dtype)
    q[..., ::3] *= 2.0**-20
    small_k, small_v = ((x.float() * 4).to(kind) for x in (k, v))
    spec = Spec(scale=0.1 / max(great, 1.0))
    found = decode_partial(q, small_k, small_v, spec=spec)
    assert_close(found, formula(q, small_k.double(), small_v.double(), spec))


@pytest.mark.parametrize("lengths", [None, [200, 9], [70, 200]])
def test_the_merge_of_splits_does_not_depend_on_who_comes_last(splits, ranges, monkeypatch, lengths):
    """The interpreter runs programs in order; in the other order the same bits come out, and the counters are 0."""
    splits(4)
    ranges(5)
    q, k, v = made(12, 2, 4, 2, 1, 200, 64, 64)
    where = {} if lengths is None else {"kv_lengths": torch.tensor(lengths, device=DEVICE)}
    first = decode_partial(q, k, v, **where)
    assert all((x == 0).all() for x in arrivals._of_streams.values())
    grid, place, programs = [], interpreter_builder.set_grid_idx, interpreter_builder.set_grid_dim
    monkeypatch.setattr(interpreter_builder, "set_grid_dim", lambda *sizes: grid.append(sizes) or programs(*sizes))

    def from_the_end(*at):
        place(*(size - 1 - x for size, x in zip(grid[-1], at, strict=True)))

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", from_the_end)
    again = decode_partial(q, k, v, **where)
    assert grid == [(5, 1, 1) if lengths else (1, 4, 4)]
    assert torch.equal(first.out, again.out) and torch.equal(first.lse, again.lse)
    assert all((x == 0).all() for x in arrivals._of_streams.values())


def test_partials_of_shards_merge_to_the_whole():
    from attention import merge_states

    q, k, v = made(13, 1, 4, 2, 1, 90, 32, 32)
    parts = [decode_partial(q, k[:, :, cut], v[:, :, cut]) for cut in (slice(0, 30), slice(30, 30), slice(30, 90))]
    merged = merge_states(tuple(p.out.cpu() for p in parts), tuple(p.lse.cpu() for p in parts))
    assert_close(merged, formula(q, k, v, PLAIN))


def test_nothing_to_do():
    q, k, v = made(15, 0, 4, 2, 1, 10, 32, 32)
    assert decode_partial(q, k, v).out.shape == (0, 4, 1, 32)


def test_forms_are_checked_and_chosen_for_once(monkeypatch):
    """Layers of a model have arguments of one form: only the first is looked at, and no two kinds are taken for one."""
    chosen = []
    choose = decode._ready_for

    def counted(*arguments, **options):
        chosen.append(arguments)
        return choose(*arguments, **options)

    monkeypatch.setattr(decode, "_ready_for", counted)
    for seed in range(3):
        check(*made(seed, 1, 2, 1, 1, 40, 16, 16))
    assert len(chosen) == 1
    check(*made(0, 1, 2, 1, 1, 41, 16, 16))
    check(*made(0, 1, 2, 1, 1, 40, 16, 16, torch.bfloat16))
    check(*made(0, 1, 2, 1, 1, 40, 16, 16), Spec(scale=1.0))
    assert len(chosen) == 4
    with decode.TUNED.trying((16, 4, 1)):
        check(*made(0, 1, 2, 1, 1, 40, 16, 16))
    check(*made(0, 1, 2, 1, 1, 40, 16, 16))
    assert len(chosen) == 6


def test_wrong_arguments_are_refused_after_right_ones_too():
    q, k, v = made(0, 1, 2, 1, 1, 40, 16, 16)
    check(q, k, v)
    with pytest.raises(ValueError, match="gradient"):
        decode_partial(q.requires_grad_(), k, v)
    with pytest.raises(ValueError, match="out"):
        decode_partial(q.detach(), k, v, out=Partial(torch.empty(1, 2, 1, 15), torch.empty(1, 2, 1)))


def test_forms_that_are_kept_have_a_limit(monkeypatch):
    monkeypatch.setattr(decode, "MOST_READY", 3)
    for n in range(1, 9):
        check(*made(n, 1, 1, 1, 1, n, 16, 16))
        assert len(decode._ready) <= 3
