"""check_kernels.py: what is right, and what is wrong, is found."""

import json
import sys

import numpy as np
import pytest
import torch

from attention import Partial
from tests.tools.gpu.running import parts_of, run, table, wrong

OF_EACH_KIND = ("0", "1", "8", "11", "12", "13", "24")
KINDS = ["decode", "folds", "local_attention", "merging", "packed", "prefill", "states"]
MISSING = "numba mpi4py cupy transformers"


def test_every_kind_is_right_on_a_machine_without_numba(tmp_path):
    """And every program can be imported there."""
    plant = tmp_path / "plant.py"
    names = ("bench_kernels", "bench_ranks", "bench_generate", "tune", "facts", "rank_worker", "raw_nccl")
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
        from attention.gpu import decode

        launch = decode._launch

        def wrong_launch(q, k, v, spec, seen, scales, out):
            launch(q, k, v, spec, seen, scales, out)
            fault(out)

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
        (bent(lambda buffer, target: buffer[target : target + 1].bitwise_xor_(1)), 24, "from the CPU, 1.0e-06 allowed"),
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
    assert tools.check_kinds.distance(partial([[1.0], [np.nan]], [2.0, -np.inf]), wanted, 1.0) == np.inf


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
for index in range(first, 8, step):
    if index == 2:
        os._exit(9)
    if index == 6:
        time.sleep(1000 * HANGS)
    case = {"kind": "decode", "what": "", "wrong": None, "off": 1e-7, "off_cpu": None, "graph": False}
    print(json.dumps([index, case]), flush=True)
    if index == 3:
        os._exit(3)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_workers(tools, part, monkeypatch, tmp_path, hangs):
    """One whose card is lost is followed by another, one that dies too; what died or hung is a failure."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("HANGS", str(int(hangs))))
    monkeypatch.setenv("PYTHON", f"{sys.executable} {script}")
    monkeypatch.setattr(tools.workers, "GRACE_S", 2.0)
    found, status = part("check_kernels", seconds=8.0 if hangs else 60.0, only=None, workers=2)
    assert status == 1
    tried = sorted(index for index, case in found["data"]["cases"] if case["kind"] == "decode")
    assert tried == ([0, 1, 3, 4, 5, 7] if hangs else [0, 1, 3, 4, 5, 6, 7])
    why = [words for words in wrong(found) if "worker" in words]
    assert "--only 2, worker" in why[0] and "ended with status 9" in why[0]
    assert len(why) == 1 + hangs and (not hangs or ("--only 6, worker" in why[1] and "did not end" in why[1]))
    assert "some prefill: no problem was tried" in wrong(found)
    assert json.dumps(found)
