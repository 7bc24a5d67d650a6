"""What ranks find out while they wait, on threads: who is missing, ends, fails or does something else."""

import re
import threading

import numpy as np
import pytest

from tests.execute.collective_cases import MOMENTS
from tests.machines import line
from tests.plans import every_plan
from topocomm import SUM, DeadlineError, MismatchError, OperatorError, RankFailedError, TopocommError, run_local

pytestmark = pytest.mark.alone


def test_disorder_after_the_first_use_is_named_at_the_first_message():
    texts = {}

    def body(comm):
        a, b = np.zeros(4), np.zeros(5)
        comm.allreduce(a, SUM), comm.allreduce(b, SUM)
        try:
            comm.allreduce(a if comm.rank == 1 else b, SUM)
        except MismatchError as error:
            texts[comm.rank] = str(error)
            raise

    with pytest.raises(MismatchError):
        run_local(body, ranks=2)
    assert set(texts) == {0, 1}
    assert all("call 3 (allreduce sum) is another one on rank" in text for text in texts.values())
    assert all(
        re.search(r": value \(rank \d: float64 \[[45]\]; rank \d: float64 \[[45]\]\)", text) for text in texts.values()
    )
    assert any("rank 1" in text for text in texts.values())


def test_a_call_with_arrays_of_another_shape_names_one_field_in_full():
    def body(comm):
        value = {"total": np.zeros((4, 2)), "count": np.zeros(4, np.int64)}
        other = {name: array[:3] for name, array in value.items()}
        for turn in range(3):
            comm.allreduce(other if (comm.rank, turn) == (1, 2) else value, MOMENTS)

    with pytest.raises(MismatchError) as caught:
        run_local(body, ranks=2)
    text = str(caught.value)
    assert re.search(
        r"field 'total' \(rank \d: float64 \[[34], 2\]; rank \d: float64 \[[34], 2\]\), likewise 1 more field; ", text
    ), text


def test_a_rank_that_raises_stops_the_others():
    stopped = {}

    def body(comm):
        comm.allreduce(np.ones(2), SUM)
        if comm.rank == 1:
            raise KeyError("lost")
        try:
            comm.allreduce(np.ones(2), SUM)
        except RankFailedError as error:
            stopped[comm.rank] = str(error)
            raise

    with pytest.raises(KeyError, match="lost") as caught:
        run_local(body, ranks=3)
    assert caught.value.__notes__[-1] == "raised by rank 1 of 3"
    assert caught.value.__notes__[0].startswith("rank 1: its last calls are in ")
    assert sorted(stopped) == [0, 2]
    assert all("stopped, since rank 1 failed: KeyError: 'lost'" in text for text in stopped.values())


@pytest.mark.parametrize(
    ("earlier", "since"),
    [
        ("none", "this communicator was made"),
        ("allreduce", r"call 2 \(allreduce sum, value float64 \[2\]\), [0-9.]+ s ago"),
        ("broadcast", r"call 3 \(the first use of a call\), [0-9.]+ s ago"),  # its root waits for nobody
    ],
)
def test_a_silent_rank_was_last_heard_of_in_a_call_that_all_ranks_have_begun(monkeypatch, earlier, since):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "0.4")
    texts, late, x = {}, threading.Event(), np.ones(2)

    def body(comm):
        if earlier != "none":
            comm.allreduce(x, SUM), comm.allreduce(x, SUM)
        if earlier == "broadcast":
            comm.broadcast(x)
        if comm.rank == 1:
            return late.wait(20)
        try:
            if earlier == "broadcast":
                comm.broadcast(x)
            comm.allreduce(x, SUM)
        except DeadlineError as error:
            texts[comm.rank] = str(error)
            raise
        finally:
            late.set()

    with pytest.raises(DeadlineError):
        run_local(body, ranks=2)
    assert re.search(rf"behind: rank 1 \(not heard of since {since}\)$", texts[0]), texts


def test_a_missing_rank_is_named_at_the_deadline(monkeypatch):
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "0.4")
    texts, late = {}, threading.Event()

    def body(comm):
        comm.allreduce(np.ones(2), SUM)
        if comm.rank == 1:
            late.wait(10)
            return
        try:
            comm.allreduce(np.ones(2), SUM)
        except DeadlineError as error:
            texts[comm.rank] = str(error)
            late.set()
            raise

    with pytest.raises(DeadlineError):
        run_local(body, ranks=3)
    assert sorted(texts) == [0, 2]
    assert any("still waiting for rank 1 (" in text and "after 0.4 s" in text for text in texts.values())
    assert any("call 2 (allreduce sum, value float64 [2]), round 1: " in text for text in texts.values())
    assert any("behind: rank 1 (" in text for text in texts.values())


def test_the_far_end_of_a_chain_of_waits_is_named(monkeypatch):
    """Every rank waits for the one before it, rank 0 does not come, and rank 7 is the first at its limit."""
    monkeypatch.setenv("TOPOCOMM_TIMEOUT_S", "1")
    texts, late = {}, threading.Event()

    def body(comm):
        x = np.ones(4)
        layout = SUM.layout({"value": (x.shape, x.dtype)})
        chain = next(p for p in every_plan(comm.topology, "scan", SUM, layout) if p.algorithm == "chain")
        call = comm.prepare("scan", like=x, operator=SUM, plan=chain)
        call(x)
        if comm.rank == 0:
            late.wait(10)
            return
        late.wait(0 if comm.rank == 7 else 0.1)
        try:
            call(x)
        except DeadlineError as error:
            texts[comm.rank] = str(error)
            late.set()
            raise

    with pytest.raises(DeadlineError):
        run_local(body, ranks=8, topology=line(8))
    assert texts[7].startswith("rank 7: call 2 (scan sum")
    assert all("; behind: rank 0 (" in text for text in texts.values()), texts


def test_a_rank_that_returns_early_is_named_at_once():
    def body(comm):
        comm.allreduce(np.ones(2), SUM)
        if comm.rank == 1:
            return
        comm.allreduce(np.ones(2), SUM)

    with pytest.raises(RankFailedError, match="rank 1 has ended"):
        run_local(body, ranks=3)


def test_arrays_that_one_rank_refuses_are_an_error_on_every_rank():
    texts = {}

    def body(comm):
        x, out = np.ones(3), np.zeros(3)
        comm.allreduce(x, SUM, out=out)
        out.flags.writeable = False
        for _ in range(2):  # where all refuse, they go on
            with pytest.raises(OperatorError, match="read-only"):
                comm.allreduce(x, SUM, out=out)
        assert comm.allreduce(x, SUM).tolist() == [3.0] * 3
        try:
            comm.allreduce(x, SUM, out=out if comm.rank == 1 else np.zeros(3))
            comm.barrier()
        except TopocommError as error:
            texts[comm.rank] = f"{type(error).__name__}: {error}"
            raise

    with pytest.raises(TopocommError):
        run_local(body, ranks=3)
    assert texts.pop(1).startswith("OperatorError: out is read-only")
    assert sorted(texts) == [0, 2]
    for text in texts.values():
        assert "rank 1 refused its arrays: " in text or "rank 1 failed: OperatorError: " in text
        assert "out is read-only" in text


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ([1.0] * 3, "expected an array, or a dict, NamedTuple or dataclass of arrays, got list"),
        (None, "expected an array, or a dict, NamedTuple or dataclass of arrays, got None"),
        ({"value": 3}, "field 'value': expected a NumPy array or torch tensor, got int; wrap it with np.asarray(...)"),
        ({"total": np.ones(3)}, "operator 'sum' takes the fields ['value']; missing 'value'; unknown 'total'"),
    ],
)
def test_a_later_call_that_one_rank_refuses_says_why_on_every_rank(odd, reason):
    texts, kinds = {}, {}

    def body(comm):
        try:
            for turn in range(3):
                comm.allreduce(odd if (comm.rank, turn) == (1, 2) else np.ones(3), SUM)
        except TopocommError as error:
            texts[comm.rank], kinds[comm.rank] = str(error), type(error)
            raise

    with pytest.raises((MismatchError, OperatorError)):
        run_local(body, ranks=3)
    assert sorted(texts) == [0, 1, 2]
    assert texts.pop(1).startswith(reason)
    assert kinds == {0: MismatchError, 1: OperatorError, 2: MismatchError}
    for text in texts.values():
        assert f"call 3 (allreduce sum, value float64 [3]): rank 1 refused its arrays: {reason}" in text
        assert "no arrays" not in text and "same order" not in text


def test_closing_against_a_call_is_named():
    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            return comm.close()
        return comm.barrier()

    with pytest.raises(TopocommError, match="rank 1"):
        run_local(body, ranks=3)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(), "rank 1 exited: sys.exit()"),
        (SystemExit(3), "rank 1 exited: sys.exit(3)"),
        (KeyError(), "rank 1 failed: KeyError"),
        (KeyError("x"), "rank 1 failed: KeyError: 'x'"),
    ],
)
def test_what_ended_another_rank_is_told_whole(error, told):
    texts = []

    def body(comm):
        comm.barrier()
        if comm.rank == 1:
            raise error
        with pytest.raises(RankFailedError) as failed:
            comm.barrier()
        texts.append(str(failed.value))

    with pytest.raises(type(error)):
        run_local(body, ranks=2)
    assert texts == [f"rank 0: stopped, since {told}"]


def test_another_root_of_a_known_broadcast_is_told_though_the_root_went_on():
    def body(comm):
        x = np.zeros(4)
        comm.broadcast(x, root=0), comm.broadcast(x, root=1)
        for _ in range(5):
            comm.broadcast(x, root=1 if comm.rank == 1 else 0)
        comm.barrier()

    with pytest.raises(
        MismatchError, match=r"call 3 \(broadcast\) is another one on rank \d: root \(rank \d: [01]; rank \d: [01]\); "
    ):
        run_local(body, ranks=3)
