"""check_kernels.py: what is right, and what is wrong, is found."""

import json
import sys
import time

import numpy as np
import pytest
import torch

from attention import Partial
from tests.tools.gpu.running import parts_of, run, table, wrong

OF_EACH_KIND = ("0", "1", "8", "11", "13", "24")
KINDS = ["decode", "folds", "local_attention", "merging", "prefill", "states"]
MISSING = "numba mpi4py cupy transformers"


@pytest.mark.long
def test_every_kind_is_right_on_a_machine_without_numba(tmp_path):
    """And every program can be imported there."""
    plant = tmp_path / "plant.py"
    names = ("bench_kernels", "bench_ranks", "bench_generate", "tune", "facts", "rank_worker", "nccl_files.raw_nccl")
    plant.write_text("\n".join(f"import {name}" for name in names))
    options = "--only", *OF_EACH_KIND
    status, said = run(tmp_path / "out", "check_kernels.py", *options, BLOCK=MISSING, PLANT=str(plant))
    assert status == 0, said[-3000:]
    part = parts_of(tmp_path / "out")["check_kernels"]
    rows = table(part, "Random problems")
    assert [row["kernel"] for row in rows] == KINDS
    assert all(row["problems"] == row["right"] == "1" for row in rows)
    assert part["ended"] and not wrong(part)
    for index, case in part["data"]["cases"]:
        assert str(index) in OF_EACH_KIND
        assert (case["off"] is None) == (case["kind"] == "folds")


def touched(fault):
    """Does something to what the decode kernel wrote."""

    def plant(tools, monkeypatch):
        from attention.gpu.decode import decode

        launch = decode._launch

        def wrong_launch(ready, arrays, *others):
            launch(ready, arrays, *others)
            fault(Partial(*arrays[3:]))

        monkeypatch.setattr(decode, "_launch", wrong_launch)

    return plant


def bent(fault):
    """Does something to the memory in which a fold worked."""

    def plant(tools, monkeypatch):
        bind = tools.check_folds.bind_device_folds

        def wrong_bind(operator, layout, buffer, folds):
            fold = bind(operator, layout, buffer, folds)
            return lambda: (fold(), fault(buffer, folds[0][2]))

        monkeypatch.setattr(tools.check_folds, "bind_device_folds", wrong_bind)

    return plant


def of_states(fault):
    """Does something to a merge of states."""

    def plant(tools, monkeypatch):
        merge = tools.check_kinds.merge_on_device
        monkeypatch.setattr(tools.check_kinds, "merge_on_device", lambda *states: fault(*merge(*states)))

    return plant


def raises(out):
    raise RuntimeError("no such kernel")


calls = iter(range(1000))


@pytest.mark.parametrize(
    ("plant", "only", "words"),
    [
        (touched(lambda out: out.out.view(-1)[:1].add_(1e-4)), 11, "from the formula, 3.0e-06 allowed"),
        (touched(lambda out: out.lse.view(-1)[-1:].add_(1e-4)), 11, "from the formula"),
        (touched(lambda out: out.out.view(-1)[1:2].fill_(torch.nan)), 11, "inf from the formula"),
        (touched(lambda out: out.out.mul_(1 + 2e-7 * next(calls))), 11, "differ in bits"),
        (touched(raises), 11, "RuntimeError: no such kernel"),
        (
            bent(lambda buffer, target: buffer[target + 2 : target + 3].bitwise_xor_(64)),
            24,
            "from the CPU, 1.0e-06 allowed",
        ),
        (bent(lambda buffer, target: buffer[:1].bitwise_xor_(1)), 24, "wrote beside the result"),
        (of_states(lambda out, lse: (torch.empty_like(out), lse)), 0, "inf from the formula"),
    ],
)
def test_what_is_wrong_is_found(tools, part, monkeypatch, plant, only, words):
    plant(tools, monkeypatch)
    found, status = part("check_kernels", only=[only], workers=0)
    assert status == 1
    assert len(wrong(found)) == 1 and words in wrong(found)[0] and f"--only {only}" in wrong(found)[0]
    assert table(found, "Random problems")[0]["right"] == "0"


def test_latents_and_eight_bits(tools, part, monkeypatch):
    """What chance draws seldom."""
    draw, latent = tools.check_draw.draw, tools.check_draw.latent
    monkeypatch.setattr(tools.check_draw, "DTYPES", {})
    kinds = [lambda rng, card, decoding: latent(rng, card), draw]
    for one in kinds:
        monkeypatch.setattr(tools.check_kinds, "draw", one)
        found, status = part("check_kernels", only=[11], workers=0)
        assert status == 0, wrong(found)
        what = found["data"]["cases"][0][1]["what"]
        assert "latent" in what or (("e4m3" in what or "e5m2" in what) and "k_scales" in what)


def test_memory_begins_as_nan(tools):
    torch.full((1000,), 3.0)  # what the next may get
    with tools.check_kinds.poisoned():
        assert torch.empty(1000).isnan().all() and torch.empty_like(torch.zeros(7)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_empty_rows_are_exact(tools):
    def partial(out, lse):
        return Partial(np.array(out), np.array(lse))

    wanted = partial([[1.0], [0.0]], [2.0, -np.inf])
    told = tools.check_kinds._emptiness
    assert told(wanted, wanted) is None
    assert told(partial([[1.0], [1e-30]], [2.0, -np.inf]), wanted) == "an empty row is not 0"
    for lse in ([2.0, -1e30], [-np.inf, -np.inf], [2.0, np.nan]):
        assert told(partial([[0.0], [0.0]], lse), wanted) == "other rows are empty than by the formula"
    distance = tools.check_kinds.distance
    assert distance(partial([[1.0], [np.nan]], [2.0, -np.inf]), wanted, 1.0) == np.inf
    off = partial([[1.0], [0.0]], [2.5, -np.inf])
    assert (distance(off, wanted, 1.0), distance(off, wanted, 1.0, 4.0), distance(off, wanted, 1.0, 1.5)) == (
        0.25,
        0.125,
        0.25,
    )


def test_what_nobody_may_read_is_nan(tools):
    """Else a kernel that reads it would not be found."""
    hidden = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        problem = tools.check_draw.draw(rng, tools.card, decoding=True)
        if "kv_mask" in problem.where and "kv_lengths" not in problem.where and problem.k.numel():
            seen = problem.where["kv_mask"]
            assert torch.isnan(problem.k.float()).any(-1).any(1).equal(~seen)
            hidden += int((~seen).sum())
        if "block_tables" in problem.more:
            assert torch.isnan(problem.stored[1].float()).flatten(1).all(1).sum() >= 2  # pages that nobody has
    assert hidden


WORKER = """
import json, os, sys, time
first, step = int(sys.argv[2]), int(sys.argv[3])
for index in range(first, 10**6 if MODE == "cut" and first % 2 else 8, step):
    if index == 2:
        os._exit(9)
    if index == 6 and MODE != "ends":
        time.sleep(1000)
    case = {"kind": "decode", "what": "", "wrong": None, "off": 1e-7, "off_cpu": None, "graph": False}
    print("a library has something to say", json.dumps([index, case]), sep="\\n", flush=True)
    if index == 3:
        os._exit(3)
    if index > 8:
        time.sleep(0.2)
"""


@pytest.mark.parametrize("mode", ["ends", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("hangs", "cut"))])
def test_workers(tools, part, monkeypatch, tmp_path, mode):
    """One whose card is lost is followed by another, one that dies or hangs too; what died or hung is a failure.

    What the end of the time cuts off is none; one that goes on beyond it, line by line, is stopped all the same.
    """
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("MODE", repr(mode)))
    monkeypatch.setenv("PYTHON", f"{sys.executable} {script}")
    monkeypatch.setattr(tools.workers, "HANGS_S", 2.0 if mode == "hangs" else 60.0)
    monkeypatch.setattr(tools.workers, "GRACE_S", 0.5)
    began_s = time.monotonic()
    found, status = part("check_kernels", seconds=2.0 if mode == "cut" else 60.0, only=None, workers=2)
    assert status == 1 and (mode != "cut" or time.monotonic() - began_s < 10)
    tried = sorted(index for index, case in found["data"]["cases"] if case["kind"] == "decode" and index < 8)
    assert tried == ([0, 1, 3, 4, 5, 6, 7] if mode == "ends" else [0, 1, 3, 4, 5, 7])
    why = [words for words in wrong(found) if "worker" in words]
    assert "--only 2, worker" in why[0] and "ended with status 9" in why[0]
    assert len(why) == (2 if mode == "hangs" else 1)
    if mode == "hangs":
        assert "--only 6, worker" in why[1] and "did not end within 2 s; its process was killed" in why[1]
    note = found["blocks"][0]["text"]
    assert ("Not finished when the time was over: 6, " in note) == (mode == "cut")
    assert "some prefill: no problem was tried" in wrong(found)
    assert json.dumps(found)


def test_what_was_found_is_kept_as_it_comes(tools, tmp_path, monkeypatch):
    """What is wrong at once, the rest every few seconds: nothing is lost if the part is killed."""
    monkeypatch.setattr(tools.check_kernels, "KEEP_S", 0.0)
    kept = tools.check_kernels.Kept(tools.results.Results(tmp_path, "check_kernels", "Kernels"))

    def cases():
        for index in range(3):
            if index == 2:  # from here every write is for what is wrong, or the last
                monkeypatch.setattr(tools.check_kernels, "KEEP_S", 1000.0)
            yield index, tools.check_kernels.Found("decode", "", "it is wrong" if index == 1 else None)
            held = parts_of(tmp_path)["check_kernels"]
            assert [one[0] for one in held["data"]["cases"]] == list(range(index + 1))
            assert len(held["checks"]) == index + 1 and len(wrong(held)) == (index >= 1)
            rows = table(held, "Random problems")
            assert [row["problems"] for row in rows] == [str(index + 1)] and len(held["blocks"]) == 1
            assert not held["ended"] and "did not come to its end" in (tmp_path / "results.md").read_text()

    kept.all_of(cases())
    assert len(kept.found) == 3


def test_weights_in_two_parts(tools):
    """The limits are those of the products, and close to what weights reach."""
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(100_000, dtype=torch.double, generator=random).float() * 2.0 ** -torch.arange(30.0)[:, None]

    class Gpu(type(tools.card)):
        interpreted = False

    def split(dtype, keys, card, stored=None):
        q, k = torch.zeros(1, 1, 1, 1, dtype=dtype), torch.zeros(1, 1, keys, 1, dtype=stored or dtype)
        return tools.check_kinds.split(card, tools.check_draw.Problem(q, k, k, None, {}, (k, k)))

    for stored in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert split(torch.bfloat16, 9, Gpu(), stored) == split(torch.float16, 9, Gpu())
        assert split(torch.float32, 9, Gpu(), stored) == 0.0
    for dtype, digits in ((torch.bfloat16, 8), (torch.float16, 11)):
        lift = 2.0**15 if dtype == torch.float16 else 1.0
        rest = weights * lift - (weights * lift).to(dtype).float()
        off = (rest - rest.to(dtype).float()).abs() / lift
        whole, each = split(dtype, 0, Gpu()), split(dtype, 1, Gpu()) - split(dtype, 0, Gpu())
        assert (off <= whole * weights + each).all()
        assert (off / weights)[weights > 0.25].max() > whole / 2 and off[weights < 0.25].max() > each / 2
        assert split(dtype, 9, tools.card) == split(torch.float32, 9, Gpu()) == 0.0  # the stand-in has no parts
        plain = ((weights - weights.to(dtype).float()).abs() / weights)[weights > 2**-14].max()
        assert 2.0**-digits > plain > 0.95 * tools.check_kinds.rounded(Gpu(), torch.zeros(1, dtype=dtype))
        assert tools.check_kinds.rounded(Gpu(), torch.zeros(1, dtype=dtype)) == 2.0**-digits


@pytest.mark.parametrize("allowed", [0.0, 2.0**-17])
def test_the_limit_of_decoding(tools, part, monkeypatch, allowed):
    """A result that is off by what the weights' parts may add is right, and wrong where they add nothing."""
    monkeypatch.setattr(tools.check_kinds, "split", lambda card, problem: allowed)
    touched(lambda out: out.out.mul_(1 + 2.0**-17))(tools, monkeypatch)
    found, _ = part("check_kernels", only=[11], workers=0)
    assert found["data"]["cases"][0][1]["kind"] == "decode"
    assert bool(wrong(found)) == (allowed == 0.0), wrong(found)


def test_problems_that_the_formula_can_afford(tools, monkeypatch):
    """On a card of full size; small ones stay as they are drawn."""
    afford, most = tools.check_draw._affordable, tools.check_draw.MOST_WORK
    assert afford(3, 8, 8, 16, 300, 256) == (3, 8, 16, 300)
    for sizes in (
        (3, 8, 8, 1500, 6000, 512),
        (1, 1, 8, 1500, 1, 512),
        (3, 8, 8, 16, 6000, 512),
        (1, 3, 8, 17, 6000, 96),
    ):
        batch, kv_heads, q_len, n = afford(*sizes)
        work = batch * kv_heads * sizes[2] * q_len * (n * sizes[5] + tools.check_draw.ROW_WORK)
        assert most / 8 < work <= most and all(a <= b for a, b in zip((batch, kv_heads), sizes, strict=False))
        assert q_len >= 17 or sizes[3] == 16  # prompts stay prompts
    drawn = []
    monkeypatch.setattr(type(tools.card), "sizes", sys.modules["card"].Sizes())
    monkeypatch.setattr(tools.check_draw, "_normal", lambda rng, card, shape, dtype: drawn.append(shape) or 1 / 0)
    for seed in range(300):
        with pytest.raises(ZeroDivisionError):
            tools.check_draw.draw(np.random.default_rng(seed), tools.card, decoding=False)
    assert max(np.prod(shape[:3]) for shape in drawn) <= most / tools.check_draw.ROW_WORK
