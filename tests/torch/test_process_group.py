"""Groups as torch's own code uses them: collectives beside gloo, training, compilation, and errors on every rank."""

import re
from pathlib import Path

import pytest

from tests.torch_jobs import by_hand, said, torchrun

pytest.importorskip("torch.distributed")
PROGRAMS = Path(__file__).parent / "programs"
LONG = pytest.mark.long
SOFT = [
    "shapes_differ",
    "operators_differ",
    "calls_differ",
    "wrong_on_one",
    "one_is_late",
    "one_is_late_for_a_barrier",
    "handle_is_late",
    "nobody_sends",
    "no_such_device",
    "one_dies",
]


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=LONG) for ranks in (1, 3, 4, 8))])
def test_every_call_gives_what_gloo_gives(ranks):
    job = torchrun(ranks, [PROGRAMS / "collectives.py", 200 if ranks > 2 else 20], timeout_s=280)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")


@LONG
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_and_compiled_programs_run_as_on_gloo(ranks):
    job = torchrun(ranks, [PROGRAMS / "training.py"], timeout_s=280)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")


@LONG
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_groups_at_once_and_handles(ranks):
    job = torchrun(ranks, [PROGRAMS / "groups.py"], timeout_s=280)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")


def told(*cases):
    """What each rank was told, by case and rank, and the exit statuses."""
    jobs = by_hand(3, [PROGRAMS / "errors.py", *cases], timeout_s=120)
    words = {}
    for stdout, _, _ in jobs:
        for rank, case, text in re.findall(r"^\[(\d)\] (\w+): (.*)$", stdout, re.MULTILINE):
            words.setdefault(case, {})[int(rank)] = text
    return words, [status for _, _, status in jobs]


@LONG
def test_every_rank_is_told_what_is_wrong():
    words, statuses = told(*SOFT)
    assert statuses == [0, 7, 0]
    assert sorted(words["shapes_differ"]) == [0, 1, 2]
    for case, ranks, pattern in [
        ("shapes_differ", [0, 1, 2], r"MismatchError: .*ranks 0, 2: float32 \[3\]; rank 1: float32 \[4\]"),
        ("operators_differ", [0, 1, 2], r"MismatchError: .*ranks 1-2: sum; rank 0: max"),
        ("calls_differ", [0, 1, 2], r"MismatchError: .*rank 2: a barrier"),
        ("wrong_on_one", [1], r"OperatorError: rank 1: all_gather: expected 3 tensors, one for each rank, got 2"),
        ("wrong_on_one", [0, 2], r"MismatchError: .*rank 1: all_gather: expected 3 tensors"),
        ("one_is_late", [0, 2], r"DeadlineError: .*waiting for rank 1.* after 2 s \(limit: the group's timeout\)"),
        ("one_is_late_for_a_barrier", [0, 2], r"DeadlineError: .*rank 1 after 1 s \(limit: this call's timeout\)"),
        ("handle_is_late", [0, 2], r"DeadlineError: .*rank 1.* after 2 s \(limit: the group's timeout\)"),
        ("nobody_sends", [0], r"DeadlineError: rank 0: receive from rank 1, tag 0: still waiting after 2 s"),
        ("no_such_device", [0, 1, 2], r"TopocommError: a tensor is on meta, and this group serves cpu:topocomm"),
        ("one_dies", [0, 2], r"RankFailedError: .*rank 1"),
    ]:
        for rank in ranks:
            assert re.match(pattern, words[case][rank]), (case, rank, words[case].get(rank))
    advice = [text for text in words["one_dies"].values() if "; destroy_process_group(), then init_process" in text]
    assert advice, "who finds it out says what a torch program does, and the others pass the news on"
    assert not any("shrink" in text for text in words["one_dies"].values())


@LONG
def test_an_uncaught_exception_ends_the_waiting_of_others():
    words, statuses = told("one_raises")
    assert statuses == [0, 1, 0]
    for rank in (0, 2):
        assert re.search("RankFailedError: .*rank 1 failed: SystemError: out of paper", words["one_raises"][rank])
