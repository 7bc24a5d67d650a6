"""The programs that time ranks and generation, whole, on a stand-in for the card: their tables, and what is missing."""

import json
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP, Partial
from tests.tools.gpu.running import PYTHON, number, parts_of, table, wrong
from topocomm import run_local
from topocomm.execute.device.device_library import FOR_THREADS
from topocomm.planning.collectives import collective_of
from topocomm.planning.planner import make_plan
from topocomm.planning.request import Request

pytestmark = pytest.mark.filterwarnings("ignore")  # the interpreter computes with NumPy
UNMEASURED = "not yet measured"


@pytest.mark.long
def test_ranks_on_one_card(part, monkeypatch):
    monkeypatch.setenv("PYTHON", PYTHON)
    found, status = part("bench_ranks")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "2 ranks, 1 x 2 heads x 16 float32, 136 bytes a rank")}
    ours = next(name for name in rows if name.startswith("topocomm: "))
    assert set(rows) == {ours, "all-gather + merge", "3 all-reduces + rescale", "3 all-reduces alone"}
    assert all(number(row["eager"]) > 0 and number(row["in a graph"]) > 0 for row in rows.values())
    assert "One GPU, no link was crossed." in json.dumps(found["blocks"])
    goal = table(found, "What was to be reached")[0]
    assert goal["target"] == ">= 3 x 3 all-reduces + rescale" and goal["met"] == UNMEASURED


def told_by_ranks(tools, capsys, ranks=2, limit=None):
    """The last word of ranks on threads of this process."""
    capsys.readouterr()
    limit = limit or tools.turns.Limit(100)
    with np.errstate(all="ignore"):
        run_local(lambda comm: tools.rank_worker.rank_job(comm, tools.card, limit), ranks=ranks)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


OTHERS = "3 all-reduces + rescale: "
OTHER_BITS = "topocomm: x: other bits than ranks in host memory by the same plan"
NOT_AGAIN = "topocomm: x: a second call gives other bits"


def only(made, fault):
    """The one way there is, with a fault."""
    (way,) = made.values()
    return {"topocomm: x": way._replace(run=fault(way))}


def poisoned(way):
    """A call whose result is off by a bit."""
    return lambda: (way.run(), way.result().lse.view(torch.int32)[:1].bitwise_xor_(1))


def bent(way):
    """A call whose result is another every time."""
    turns = iter(range(1000))
    return lambda: (way.run(), way.result().out.add_(next(turns)))


@pytest.mark.parametrize(
    ("name", "way", "words"),
    [
        ("by_nccl", lambda made: {name: way._replace(run=lambda: None) for name, way in made.items()}, OTHERS),
        ("ours", lambda made: only(made, poisoned), OTHER_BITS),
        ("ours", lambda made: only(made, bent), NOT_AGAIN),
    ],
)
def test_ranks_that_are_wrong(tools, monkeypatch, capsys, name, way, words):
    plain = getattr(tools.rank_worker, name)
    monkeypatch.setattr(tools.rank_worker, name, lambda *given: way(plain(*given)))
    monkeypatch.setattr(type(tools.card), "graph", lambda self, run, stream=None: 1 / 0)
    told = told_by_ranks(tools, capsys)
    assert any(one.startswith(words) for one in told["wrong"]), told["wrong"]
    assert told["graph"] == {} and all("division by zero" in one for one in told["graph wrong"])


@pytest.mark.long
def test_ours_has_the_bits_of_its_own_plan(tools, monkeypatch, capsys):
    """On a card plans count launches, so that the one for host memory may add in another order."""
    apart = []

    def ours(comm, x):
        like = x._asdict()
        layout = LOGSUMEXP.layout({name: (tuple(part.shape), np.dtype("f4")) for name, part in like.items()})
        collective = collective_of("allreduce", comm.size, layout.rows)
        plan = make_plan(comm.topology, Request(collective, LOGSUMEXP, layout, comm.places, "latency", 1, "alpha"))
        call = comm.prepare("allreduce", like=like, operator=LOGSUMEXP, plan=plan)
        found = call(like)
        apart.append(not torch.equal(found["out"], comm.allreduce(like, LOGSUMEXP)["out"]))
        return {"topocomm: x": tools.rank_ways.Way(lambda: None, lambda: Partial(**found), plan)}

    monkeypatch.setattr(tools.rank_worker, "ours", ours)
    told = told_by_ranks(tools, capsys, ranks=4)
    assert any(apart) and told["wrong"] == []
    assert tools.rank_ways.Way(None, None).plan is None


def test_nothing_waits_for_the_card_while_a_rank_records(tools, monkeypatch, capsys):
    """It would make the graph invalid; and no rank begins to record before all have come."""
    recording, faults, waits = [], [], threading.Semaphore()
    card = type(tools.card)

    class Stream:
        def synchronize(self):
            if waits.acquire(blocking=False):  # one rank comes late now and then
                time.sleep(0.02)
                waits.release()
            faults.extend(["a stream"] * len(recording))

    def graph(self, run, stream=None):
        recording.append(run)
        time.sleep(0.02)
        recording.pop()
        return run

    monkeypatch.setattr(card, "stream", lambda self: Stream())
    monkeypatch.setattr(card, "graph", graph)
    monkeypatch.setattr(card, "synchronize", lambda self: faults.extend(["the card"] * len(recording)))
    told = told_by_ranks(tools, capsys)
    assert told["graph"] and not told["graph wrong"] and not faults


def test_kernels_are_loaded_before_a_rank_waits_for_another(tools, monkeypatch, capsys):
    """The first launch of one may wait for all that runs, and would for a rank that waits for this one."""
    ran = []
    merge, bind = tools.rank_ways.gather_and_merge, tools.rank_ways.three_allreduces

    def noted(made):
        def make(library, *rest, **more):
            way = made(library, *rest, **more)
            silent = isinstance(library, tools.rank_ways.Silent)
            return way._replace(run=lambda: (ran.append(silent), way.run()))

        return make

    monkeypatch.setattr(tools.rank_ways, "gather_and_merge", noted(merge))
    monkeypatch.setattr(tools.rank_ways, "three_allreduces", noted(bind))
    assert not told_by_ranks(tools, capsys)["wrong"]
    assert ran[:4] == [True] * 4 and not any(ran[4:])  # two ways on two ranks
    most = max(sys.modules["card"].Sizes().ranks)
    assert int(tools.bench_ranks.ENVIRONMENT["CUDA_DEVICE_MAX_CONNECTIONS"]) > 2 * most
    assert FOR_THREADS.items() <= tools.bench_ranks.ENVIRONMENT.items()


def test_ranks_leave_out_what_there_is_no_time_for(tools, monkeypatch, capsys):
    """The graphs of a payload too, but not the first payload."""
    monkeypatch.setattr(type(tools.card), "sizes", tools.card.sizes._replace(payload_batches=(1, 3)))
    told = told_by_ranks(tools, capsys, limit=tools.turns.Limit(0))
    assert told["batch"] == 1 and told["eager"] and "graph" not in told


def worker_that(monkeypatch, tmp_path, does):
    """A script in the place of every worker."""
    script = tmp_path / "worker.py"
    script.write_text(f"import json, sys, time\n{does}\n")
    monkeypatch.setenv("PYTHON", f"{sys.executable} {script}")


def test_without_nccl_ours_is_measured_alone(tools, monkeypatch, capsys, part, tmp_path):
    def library(self, comm):
        if comm.rank == 1:
            raise RuntimeError("NCCL 2.28.9 takes one rank a GPU")
        return object()

    monkeypatch.setattr(type(tools.card), "library", library)
    told = told_by_ranks(tools, capsys)
    assert len(told["eager"]) == 1 and not told["wrong"]
    worker_that(monkeypatch, tmp_path, f"print({json.dumps({**told, 'raw': 'NCCL is 2.28.9'})!r})")
    found, status = part("bench_ranks")
    assert status == 0
    assert "NCCL alone was not measured: NCCL is 2.28.9." in json.dumps(found["blocks"])
    assert table(found, "What was to be reached")[0]["reached"] == UNMEASURED


HANGS = """
one = {"ranks": 2, "batch": 1, "bytes": 8, "raw": None, "wrong": ["a"], "eager": {"topocomm: x": [1.0, 2.0, 3.0]}}
one["left"] = float(sys.argv[-1]) - time.monotonic()
print("NCCL version 2.31.2+cuda13.3")
print(json.dumps(one), flush=True)
print('{"half a li', end="", flush=True)
time.sleep(1000)
"""


@pytest.mark.long
def test_ranks_that_hang_leave_what_they_had(tools, part, monkeypatch, tmp_path):
    """It is written as it comes, before the part ends."""
    monkeypatch.setattr(tools.bench_ranks, "OVERTIME_S", -36.0)
    worker_that(monkeypatch, tmp_path, HANGS)
    seen, wait = [], tools.bench_ranks.Limit.left_s.fget

    def left_s(self):
        seen.append(json.loads((tmp_path / "out/results.json").read_text())["bench_ranks"]["blocks"])
        return wait(self)

    monkeypatch.setattr(tools.bench_ranks.Limit, "left_s", property(left_s))
    found, status = part("bench_ranks", seconds=40.0)
    assert status == 1 and [words.rsplit(": ")[-1] for words in wrong(found)] == [
        "did not end within 4 s",
        "a",
        "see above",
    ]
    assert table(found, "2 ranks")[0] == {"way": "topocomm: x", "eager": "2.00 (1.50 to 2.50)", "in a graph": "-"}
    assert any(block.get("title", "").startswith("2 ranks") for block in seen[-1])
    assert -11 < found["data"]["2 ranks"][0]["left"] < -8  # nothing new is begun so long before the end


@pytest.mark.long
def test_generation(part):
    found, status = part("bench_generate")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "Plain torch model, bf16, batch 1")}
    assert list(rows) == ["torch SDPA", "torch SDPA, graph", "ours", "ours, graph"]
    assert all(number(row["new tokens/s"]) > 0 for row in rows.values())


def test_other_tokens_are_found(tools, part, monkeypatch):
    plain = tools.small_model.decode_partial

    def turned(q, k, v, **more):
        made = plain(q, k, v, **more)
        made.out.zero_()
        return made

    monkeypatch.setattr(tools.small_model, "decode_partial", turned)
    monkeypatch.setattr(tools.bench_generate, "_by_transformers", lambda *_: None)
    monkeypatch.setattr(tools.bench_generate, "_timed", lambda *_: None)
    found, status = part("bench_generate")
    assert status == 1
    assert wrong(found) == ["greedy tokens in float32: ours, graph differs from token 1 on"]


@pytest.mark.parametrize(
    ("left_s", "slow_s", "words"), [(11.0, 0, "not measured: 11 s were left, 12"), (30.0, 10, "not timed: 20 s were")]
)
def test_transformers_only_where_there_is_time(tools, tmp_path, monkeypatch, left_s, slow_s, words):
    """Its texts take the CPU long, and would overrun the part."""
    pytest.importorskip("transformers")
    late, clock = [], time.monotonic()
    monkeypatch.setattr(tools.bench_generate, "_unequal", lambda made: late.append(slow_s))
    monkeypatch.setattr(tools.turns, "time", SimpleNamespace(monotonic=lambda: clock + sum(late)))
    monkeypatch.setattr(tools.bench_generate, "_timed", lambda *_: pytest.fail("it was timed"))
    results = tools.results.Results(tmp_path, "bench_generate", "")
    with torch.no_grad():
        tools.bench_generate._by_transformers(results, tools.card, tools.turns.Limit(left_s))
    notes = parts_of(tmp_path)["bench_generate"]["blocks"]
    assert len(notes) == 1 and f"transformers was {words}" in notes[0]["text"]


def test_turns(tools, monkeypatch):
    """Every way as often, in changing order; fewer rounds where the time is over, but three."""
    ran, card = [], tools.card
    monkeypatch.setattr(type(card), "sizes", card.sizes._replace(rounds=9, block_us=0.0))
    ways = {name: tools.turns.Way(lambda name=name: ran.append(name), 2) for name in "abc"}
    times = tools.turns.in_turns(card, ways, tools.turns.Limit(60))
    assert all(len(one.us) == 9 for one in times.values())
    rounds = ["".join(ran[-27:][i : i + 3]) for i in range(0, 27, 3)]
    assert all(sorted(one) == list("abc") for one in rounds) and len(set(rounds)) > 2
    assert all(len(one.us) == 3 for one in tools.turns.in_turns(card, ways, tools.turns.Limit(0)).values())
    monkeypatch.setattr(tools.turns, "LONG_US", 0.0)  # then the block that was to say how long one is counts
    del ran[:]
    assert all(len(one.us) == 3 for one in tools.turns.in_turns(card, ways, tools.turns.Limit(0)).values())
    assert len(ran) == 3 * (1 + 3)
    assert str(tools.turns.Times([1.0, 2.0, 3.0, 4.0, 1005.0])) == "3.00 (2.00 to 4.00)"
