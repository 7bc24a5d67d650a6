"""A rank is lost in the middle of generating; the others recover and bring the tokens of an undisturbed run."""

import threading

import numpy as np
import pytest
import torch

from attention.huggingface import shard_generation
from attention.shards import ShardMap
from tests.attention.losing import LIMIT, Died, build, generate, go_on, prompt
from topocomm import run_local

LENGTH = 60


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def llama():
    return build()


@pytest.fixture(scope="module")
def undisturbed(llama):
    return generate(llama, prompt(), LENGTH, output_logits=True)


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    """Fresh storage holds NaN, so that reading a row that nobody restored shows."""
    fresh = torch.Tensor.new_empty

    def poisoned(self, *args, **kwargs):
        made = fresh(self, *args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made.fill_(-1)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def small(ranks, replicas=1):
    return ShardMap(ranks, virtual_shards=16, block_size=2, replicas=replicas)


class Deaths:
    """Lets ranks end in a layer of their n-th pass: {rank: (pass, layer)}."""

    def __init__(self, model, at):
        self._passes = {}
        self._at = at
        self._hooks = [
            layer.self_attn.register_forward_pre_hook(lambda *_, i=i: self._look(i))
            for i, layer in enumerate(model.model.layers)
        ]

    def _look(self, layer):
        rank = threading.current_thread().name
        self._passes[rank] = self._passes.get(rank, 0) + (layer == 0)
        if self._at.get(rank) == (self._passes[rank], layer):
            raise Died

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()


def lose(model, ranks, at, *, replicas=1, method="tree", seen=None, inputs=None):
    """The outcome of every rank, None of those that died."""

    def work(comm):
        with shard_generation(model, comm, method=method, shards=small(ranks, replicas)) as cache:
            try:
                return go_on(model, inputs or prompt(), LENGTH, cache, comm, seen)
            except Died:
                for layer in cache.sharded_layers:
                    for part in (layer.store._own, layer.store._copies):
                        if not part.empty:
                            part.k.view().fill_(torch.nan)
                            part.v.view().fill_(torch.nan)
                return None

    with Deaths(model, at):
        return run_local(work, ranks=ranks)


def check(outcomes, undisturbed, *, died):
    assert [rank for rank, outcome in enumerate(outcomes) if outcome is None] == died
    for rank, outcome in enumerate(outcomes):
        if outcome is not None:
            made = outcome[0]
            assert torch.equal(made.sequences, undisturbed.sequences), f"rank {rank}"
            again = torch.stack(made.logits)  # of the tokens since the recovery
            wanted = torch.stack(undisturbed.logits[-len(again) :])
            assert float((again - wanted).abs().max()) <= LIMIT, f"rank {rank}"


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("ranks", "lost", "at"), [(3, 1, (9, 1)), (4, 0, (2, 0)), (2, 1, (20, 2)), (5, 4, (1, 1))])
def test_the_tokens_are_those_of_an_undisturbed_run(llama, undisturbed, ranks, lost, at, replicas):
    outcomes = lose(llama, ranks, {f"rank{lost}": at}, replicas=replicas)
    check(outcomes, undisturbed, died=[lost])
    for outcome in outcomes:
        if outcome is not None:
            cache, (loss,) = outcome[1:]
            assert cache.shards.ranks == ranks - 1
            assert list(loss.owned) == [lost]
            assert bool(loss.lost) == (replicas == 1 and at[0] > 1)
