"""Calls that are wrong, or made otherwise on some rank, are found, and named on every rank."""

import re

import numpy as np
import pytest
import torch

import attention.decode.reductions
import attention.decode.verification
from attention import ShardMap, Spec, tree_decode
from tests.attention.cases import SHAPES, by_map, case_of
from topocomm import MismatchError, run_local

OPTIONS = [
    {},
    {"result": "heads"},
    {"wire": "bfloat16"},
    {"order": "canonical"},
    {"result": "heads", "wire": "bfloat16"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verification_finds_nothing_in_right_results(options, ranks, dtype):
    q, k, v = case_of((2, 3, 2, 3, 211, 16, 24), dtype)
    spec = Spec(causal=True, softcap=5.0, window=190, alibi_slopes=np.linspace(0, 0.1, 6), sinks=np.zeros(6))

    def on_rank(comm):
        k_shard, v_shard, positions = by_map((k, v), ShardMap(ranks), comm.rank, 211)
        for _ in range(13):  # every head of both entries
            tree_decode(
                q,
                k_shard,
                v_shard,
                comm,
                spec=spec,
                kv_positions=positions,
                q_positions=torch.arange(3),
                verify=1,
                **options,
            )

    run_local(on_rank, ranks=ranks)


def test_verification_of_shards_that_hold_nothing():
    q, k, v = case_of((2, 3, 2, 3, 5, 16, 24))
    run_local(lambda comm: tree_decode(q, k[:, :, :0], v[:, :, :0], comm, verify=1), ranks=2)
    run_local(lambda comm: tree_decode(q, k[:, :, : 5 * comm.rank], v[:, :, : 5 * comm.rank], comm, verify=1), ranks=2)


def corrupt(call, merged, what):
    if what == "out":
        merged.out[0, 0, 0, 0] += 0.01
    elif what == "lse":
        merged.lse[1, 2, 0] += 0.01
    elif what == "low":
        merged.lse[1, 2, 0] -= 2.0
    elif what == "nan":
        merged.lse[1, 2, 0] = torch.nan
    elif what == "one rank" and call.comm.rank == 1:
        merged.out[1, 1, 0, 0] += 1e-6


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("out", r"head 0 of entry 0 is wrong by 0\.01"),
        ("lse", "lse of entry 1, head 2, query 0 is not that of all keys: the ranks' weights add up to 0.990"),
        ("low", "lse of entry 1, head 2, query 0 is below a rank's own"),
        ("nan", "lse of entry 1, head 2, query 0"),
        ("one rank", r"ranks \[1\] hold other bits than rank 0"),
    ],
)
def test_verification_finds_planted_faults_on_every_rank(monkeypatch, what, part):
    q, k, v = case_of((2, 3, 2, 1, 60, 16, 24), peak=0.3)
    before = attention.decode.reductions.AllReduce.merge

    def wrong(self, call, watch):
        merged = before(self, call, watch)
        corrupt(call, merged, what)
        return merged

    monkeypatch.setattr(attention.decode.reductions.AllReduce, "merge", wrong)
    failed = []

    def on_rank(comm):
        half = slice(30 * comm.rank, 30 * (comm.rank + 1))
        try:
            tree_decode(q, k[:, :, half], v[:, :, half], comm, verify=True)
        except MismatchError as error:
            failed.append(str(error))

    run_local(on_rank, ranks=2)
    assert len(failed) == 2 and any(re.search(part, one) for one in failed), failed


def failures(ranks, call):
    """What every rank's call raises."""
    found = {}

    def on_rank(comm):
        try:
            call(comm)
        except MismatchError as error:
            found[comm.rank] = str(error)

    run_local(on_rank, ranks=ranks)
    return found


def test_verification_finds_a_key_on_two_ranks():
    q, k, v = case_of((1, 2, 1, 1, 40, 8, 8))
    pieces = [np.r_[0:10, 20:30], np.r_[10:20], np.r_[30:40, 12:14]]

    def call(comm, pieces=pieces):
        mine = pieces[comm.rank]
        tree_decode(q, k[:, :, mine], v[:, :, mine], comm, kv_positions=mine, verify=1)

    found = failures(3, call)
    assert len(found) == 3 and all("the key at position 12 is on ranks [1, 2]" in text for text in found.values())
    pieces[2] = np.r_[30:40]
    assert not failures(3, call)


def test_verification_finds_other_queries():
    q, k, v = case_of((1, 2, 1, 2, 40, 8, 8))
    spec = Spec(causal=True)

    def call(comm, **given):
        mine = np.arange(40)[comm.rank :: 2]
        tree_decode(
            given.get("q", q), k[:, :, mine], v[:, :, mine], comm, spec=spec, kv_positions=mine,
            q_positions=given.get("at", [38, 39]), verify=1,
        )  # fmt: skip

    assert not failures(2, call)
    for change in ({"q": q + 1e-6}, {"at": [37, 39]}):
        found = failures(2, lambda comm, change=change: call(comm, **(change if comm.rank else {})))
        assert len(found) == 2 and "ranks [1] were given other queries or q_positions than rank 0" in found[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            {"k": torch.bfloat16},
            r"rank 0 has dtype of k and v torch.float32, rank 2 has dtype of k and v torch.bfloat16",
        ),
        ({"q": torch.float16}, "dtype of q"),
        ({"spec": Spec(softcap=3.0)}, "has spec Spec"),
        ({"result": "heads"}, "rank 0 has result all, rank 2 has result heads"),
        ({"heads": 4}, "rank 0 has heads 2, rank 2 has heads 4"),
        ({"kv_heads": 1}, "kv_heads"),
    ],
    ids=str,
)
def test_ranks_that_call_it_otherwise_are_named_on_every_rank(change, part):
    def call(comm):
        mine = change if comm.rank == 2 else {}
        q = torch.zeros(1, mine.get("heads", 2), 1, 8, dtype=mine.get("q", torch.float32))
        k = torch.zeros(1, mine.get("kv_heads", 2), 5, 8, dtype=mine.get("k", torch.float32))
        options = {name: value for name, value in mine.items() if name in ("spec", "result")}
        tree_decode(q, k, k, comm, **options)

    found = failures(3, call)
    assert len(found) == 3
    assert all("ranks [2] differ from rank 0" in text and re.search(part, text) for text in found.values()), found


def test_verification_takes_one_call_of_many_and_another_head_each_time(monkeypatch):
    heads = []
    before = attention.decode.verification.Verification.__init__

    def counted(self, call, *more):
        before(self, call, *more)
        heads.append((self.entry, self.head))

    monkeypatch.setattr(attention.decode.verification.Verification, "__init__", counted)
    q, k, v = case_of(SHAPES[1])
    run_local(lambda comm: [tree_decode(q, k, v, comm, verify=3) for _ in range(8)], ranks=1)
    assert heads == [(0, 0), (0, 1), (0, 2)]
