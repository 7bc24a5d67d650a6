"""tune.py: which configurations are tried, taken and written."""

import dataclasses
import json

import pytest

from attention.gpu.decode import decode, decode_table
from attention.gpu.prefill import prefill_table
from attention.gpu.tuned import Tuned
from tests.tools.gpu.running import Nothing, table, wrong

pytestmark = pytest.mark.filterwarnings("ignore")  # the interpreter computes with NumPy


@pytest.fixture
def own_tables(tools, monkeypatch, tmp_path):
    """Files of tuned configurations that are nobody else's."""
    for module in (decode_table, prefill_table):
        monkeypatch.setattr(module, "TUNED", Tuned(tmp_path / f"{module.__name__.split('.')[-1]}.json"))


@pytest.mark.long
def test_tuning(part, own_tables, tmp_path):
    """The tables are written where it is told, not where they were read."""
    decode_table.TUNED.record("sm_80", {"kept": [16, 4, 2]})
    before = decode_table.TUNED.path.read_text()
    (tmp_path / "out").mkdir()
    Tuned(tmp_path / "out/prefill_table.json").record("sm_80", {"earlier": [64, 64, 4, 2]})
    found, status = part("tune", workers=0)
    assert status == 0, wrong(found)
    rows = table(found, "Configurations")
    assert len(rows) == 13 and all(row["compiled"] == "2 of 2" for row in rows)
    made = json.loads((tmp_path / "out/decode_table.json").read_text())
    assert made["sm_80"] == {"kept": [16, 4, 2]}
    assert all(len(cut) == 3 for cut in made["interpreter"].values())
    assert "16 bit, 64 wide, 16 rows, plain, shared" in made["interpreter"]
    tiles = json.loads((tmp_path / "out/prefill_table.json").read_text())
    assert tiles["sm_80"] == {"earlier": [64, 64, 4, 2]} and tiles["interpreter"]
    assert (tmp_path / "decode_table.json").read_text() == before


def test_a_candidate_that_is_wrong_is_not_taken(tools, part, own_tables, monkeypatch, tmp_path):
    launch, first = decode._launch, tools.tune_targets.targets(tools.card)[0]
    rule, other = first.candidates(2)

    def wrong_launch(ready, arrays, *others):
        launch(ready, arrays, *others)
        if decode_table.TUNED._tried == other:
            arrays[3].add_(1)

    monkeypatch.setattr(decode, "_launch", wrong_launch)
    monkeypatch.setattr(tools.tune, "targets", lambda card: (first,))
    monkeypatch.setattr(tools.tune, "pieces", lambda card: [(first, rule), (first, other)])
    monkeypatch.setattr(tools.tune_worker, "pieces", lambda card: [(first, rule), (first, other)])
    found, status = part("tune", workers=0)
    assert status == 1
    assert wrong(found)[0].startswith(f"{first.name}, {tuple(other)}: wrong: ")
    assert table(found, "Configurations")[0]["of use"] == "1"
    assert not (tmp_path / "out/decode_table.json").exists()


def test_workers_hold_the_tensors_of_one_call(tools, own_tables, monkeypatch):
    """All calls of a target, in each of a dozen processes, are more than a card of 80 GB has."""
    monkeypatch.setattr(type(tools.card), "sizes", tools.card.sizes._replace(batches=(8, 1)))
    monkeypatch.setattr(tools.tune_worker, "_ready", {})
    target = next(iter(tools.tune_targets.targets.__wrapped__(tools.card)))
    made = []
    watched = [lambda make=make: made.append(make) or make() for make in target.calls]
    one = dataclasses.replace(target, calls=watched)
    monkeypatch.setattr(tools.tune_worker, "pieces", lambda card: [(one, rule) for rule in one.candidates(2)])
    assert [tools.tune_worker.tried(tools.card, number) for number in range(3)] == [[None], [None], None]
    assert made == [target.calls[0]] and target.calls[0].args[1] == 1 and len(target.calls) == 2  # of batch 1


def test_the_fastest_candidate_is_recorded(tools, own_tables, monkeypatch, tmp_path):
    first = tools.tune_targets.targets(tools.card)[0]
    usable = first.candidates(8)
    speed = {one: 100.0 - place for place, one in enumerate(usable)}
    monkeypatch.setattr(tools.tune, "_us", lambda card, target, one, calls: speed[one])

    def in_turns(card, ways, limit):
        assert len(ways) == tools.tune.FINALISTS + 1  # and the rules' own, to compare with
        return {name: tools.turns.Times([speed[one]]) for name in ways for one in usable if name == f"0 {one}"}

    monkeypatch.setattr(tools.tune, "in_turns", in_turns)
    best, us, gain = tools.tune._best(Nothing(), tools.card, first, usable, tools.turns.Limit(9))
    assert (best, us, gain) == (str(tuple(usable[-1])), "93.0", f"{100 / 93:.2f}")
    assert decode_table.cut_for(first.problem) == usable[-1]


def test_candidates_are_timed_in_graphs(tools, own_tables, monkeypatch):
    """Of several calls: one alone takes the CPU longer than a short kernel runs."""
    first = tools.tune_targets.targets(tools.card)[0]
    usable, recorded, replayed = first.candidates(2), [], []

    def graph(self, run, stream=None):
        recorded.append(first.table.TUNED._tried)
        run()
        return lambda: replayed.append(recorded[-1])

    def call():
        assert first.table.TUNED._tried is not None, "called beside a graph"
        made.append(first.table.TUNED._tried)

    made = []
    monkeypatch.setattr(type(tools.card), "graph", graph)
    target = dataclasses.replace(first, calls=[lambda: call] * 2)
    tools.tune._best(Nothing(), tools.card, target, usable, tools.turns.Limit(9))
    assert recorded[:2] == usable and len(recorded) == 2 + 2 * 2  # alone once each, then for turns, batch by batch
    assert len(made) == (2 * 2 + 2 * 2) * tools.tune.CALLS and len(replayed) > 2 * 3
