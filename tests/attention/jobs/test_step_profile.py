"""The profile of decode steps: parts add up to the whole, and clocks are gone afterwards."""

import re
import time

import numpy as np
import pytest

from attention.__main__ import main
from attention.huggingface import generation, hf_attention
from attention.jobs.step_profile import LOCAL, MODEL, PYTHON, REDUCTION, StepProfile, StepTimes, _clocked, profiled
from tests.attention.jobs.test_generate_job import error_line, generate
from topocomm import Communicator, PreparedCall, run_local


def test_parts_add_up_to_the_whole(monkeypatch):
    now_ns = iter([0, 5, 7, 10, 30, 40, 41, 42, 51, 57])
    with profiled() as profile:
        monkeypatch.setattr("attention.jobs.step_profile.time.perf_counter_ns", lambda: next(now_ns))
        kernel, reduce = _clocked(LOCAL, lambda: 1), _clocked(REDUCTION, lambda: 2)
        attend = _clocked(PYTHON, lambda: (kernel(), _clocked(PYTHON, reduce)()))
        assert reduce() == 2  # before it runs
        profile.lap()
        assert attend() == (1, 2)
        with pytest.raises(ZeroDivisionError):
            _clocked(REDUCTION, lambda: 1 / 0)()
        profile.lap()
        assert profile.ns == {MODEL: 5 + 1 + 6, PYTHON: 2 + 20 + 1, LOCAL: 3, REDUCTION: 10 + 9}
        assert profile.reductions == [10, 9] and profile.tokens == 1 and profile.python_ns == [23]


def test_what_clocks_take_is_left_out():
    profile = StepProfile()
    profile.ns |= {MODEL: 10_000, PYTHON: 20_000, LOCAL: 5_000}
    profile.calls |= {(MODEL, PYTHON): 2, (PYTHON, LOCAL): 3}
    profile.tokens, profile.python_ns = 2, [15_000, 5_000]
    profile.leave_out(100, 10)
    assert profile.python_ns == [15_000 - 160, 5_000 - 160]
    assert profile.ns == {MODEL: 10_000 - 200, PYTHON: 20_000 - 20 - 300, LOCAL: 5_000 - 30, REDUCTION: 0}


def test_waiting_is_what_others_spend_more_than_the_last_to_come():
    def on_rank(comm):
        profile = StepProfile()
        profile.tokens, profile.reductions = 2, [[10_000, 50_000], [30_000, 20_000]][comm.rank]
        profile.ns |= {MODEL: 4_000, LOCAL: 6_000, PYTHON: 120_000}
        profile.python_ns = [[90_000, 30_000], [70_000, 50_000]][comm.rank]
        return StepTimes.gathered(profile, comm, layers=3)

    for times in run_local(on_rank, ranks=2):
        assert np.array_equal(times.us, [[2, 3, 15, 15, 60], [2, 3, 15, 10, 60]])
        lines = list(times.lines())
    assert lines[0] == "profile: milliseconds a token, over 2 tokens"
    assert lines[1].split() == ["model", "local", "attention", "reduction", "waiting", "Python", "in", "all"]
    assert lines[2].split() == ["rank", "0", "0.002", "0.003", "0.015", "0.015", "0.060", "0.095"]
    assert lines[-1] == "profile: Python around kernel and reduction 20 us a layer (median token; least 17)"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_job_prints_a_row_for_each_rank(tiny_model, capsys, ranks):
    before = PreparedCall.__call__, Communicator.allreduce, generation.before_pass
    began = time.perf_counter()
    assert main(generate(tiny_model, f"--ranks={ranks}", "--profile")) == 0
    took_ms = 1e3 * (time.perf_counter() - began)
    said = capsys.readouterr().err
    rows = re.findall(r"^  rank (\d) +([\d. ]+)$", said, re.MULTILINE)
    assert [int(rank) for rank, _ in rows] == list(range(ranks))
    for _, numbers in rows:
        *parts, whole = map(float, numbers.split())
        assert sum(parts) == pytest.approx(whole, abs=0.01) and 0 < 18 * whole < took_ms
        assert all(part > 0 for part in (parts[0], parts[1], parts[4]))
        assert (parts[2] > 0) == (ranks > 1)
    assert re.search(
        r"^profile: Python around kernel and reduction \d+ us a layer \(median token; least \d+\)$", said, re.MULTILINE
    )
    assert before == (PreparedCall.__call__, Communicator.allreduce, generation.before_pass)


def test_clocks_are_gone_after_an_error():
    attend = hf_attention.sharded_attention
    with pytest.raises(ZeroDivisionError), profiled():
        _ = 1 / 0
    assert hf_attention.AttentionInterface()[hf_attention.IMPLEMENTATION] is attend


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--method=ring", "--profile tells the parts of --method tree apart, not those of ring"),
        ("--device=cuda", "--profile reads the host's clock, which tells nothing of a GPU; use --device cpu"),
    ],
)
def test_what_it_cannot_tell(tiny_model, capsys, option, reason):
    assert main(generate(tiny_model, "--profile", option)) == 2
    assert error_line(capsys) == f"attention generate: error: {reason}"


def test_too_few_tokens(tiny_model, capsys):
    assert main([*generate(tiny_model, "--profile"), "--max-new-tokens=2"]) == 0
    assert "profile: too few tokens" in capsys.readouterr().err
