"""A rank is lost in the middle of generating; the others recover and bring the tokens of an undisturbed run."""

import threading

import pytest
import torch

from attention.cache.shards import ShardMap
from attention.huggingface.generation import shard_generation
from tests.attention.huggingface import tiny_latents
from tests.attention.losing import LIMIT, Died, build, generate, go_on, leave, prompt
from tests.thinning import thinned
from topocomm import RankFailedError, run_local

LENGTH = 60


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


def lose(model, ranks, at, *, replicas=1, method="tree", seen=None, inputs=None, shards=None):
    """The outcome of every rank, None of those that died."""

    def work(comm):
        with shard_generation(model, comm, method=method, shards=shards or small(ranks, replicas)) as cache:
            try:
                return go_on(model, inputs or prompt(), LENGTH, cache, comm, seen)
            except Died:
                leave(cache.comm)
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
@pytest.mark.parametrize(
    ("ranks", "lost", "at"), thinned([(3, 1, (9, 1)), (4, 0, (2, 0)), (2, 1, (20, 2)), (5, 4, (1, 1))])
)
def test_the_tokens_are_those_of_an_undisturbed_run(llama, undisturbed, ranks, lost, at, replicas):
    outcomes = lose(llama, ranks, {f"rank{lost}": at}, replicas=replicas)
    check(outcomes, undisturbed, died=[lost])
    for outcome in outcomes:
        if outcome is not None:
            cache, (loss,) = outcome[1:]
            assert cache.shards.ranks == ranks - 1
            assert list(loss.owned) == [lost]
            assert bool(loss.lost) == (replicas == 1 and at[0] > 1)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("lost", "at"), thinned([(1, (1, 1)), (0, (1, 2)), (2, (5, 1)), (0, (12, 0))]))
def test_a_prompt_that_was_dealt_in_runs(llama, undisturbed, lost, at, replicas):
    """In the pass of the prompt some ranks have dealt it in a layer, and others have not."""
    outcomes = lose(llama, 3, {f"rank{lost}": at}, shards=ShardMap(3, replicas=replicas))
    check(outcomes, undisturbed, died=[lost])
    maps = [outcome[1].shards for outcome in outcomes if outcome is not None]
    assert maps[0] == maps[1] and len(maps[0].prompts) == (at[0] > 1)


@pytest.mark.parametrize("method", ["ring", "allreduce"])
def test_other_methods(llama, undisturbed, method):
    check(lose(llama, 3, {"rank0": (12, 1)}, method=method), undisturbed, died=[0])


@pytest.mark.parametrize("replicas", [1, 2])
def test_two_losses(llama, undisturbed, replicas):
    """The second while the first one's tokens are computed again, or soon after."""
    outcomes = lose(llama, 5, {"rank1": (8, 2), "rank3": (9, 2)}, replicas=replicas)
    check(outcomes, undisturbed, died=[1, 3])


@pytest.mark.parametrize("replicas", [1, 2])
def test_layers_that_keep_latents(replicas):
    """A rank's rows have no values of their own."""
    model = tiny_latents.build()
    alone = generate(model, prompt(), LENGTH, output_logits=True)
    check(lose(model, 3, {"rank1": (9, 1)}, replicas=replicas), alone, died=[1])


def test_a_loss_between_two_passes(llama, undisturbed, monkeypatch):
    """Where all tokens are cached, the last one passes once more, so that the next one can follow."""
    seen = []
    choose = torch.argmax

    def dying(*args, **kwargs):
        if threading.current_thread().name == "rank0":
            seen.append(None)
            if len(seen) == 7:
                raise Died
        return choose(*args, **kwargs)

    monkeypatch.setattr(torch, "argmax", dying)
    lengths = []
    outcomes = lose(
        llama, 3, {}, seen=lambda cache: lengths.append((cache.get_seq_length(), cache.inputs["input_ids"].shape[1]))
    )
    check(outcomes, undisturbed, died=[0])  # rank 0 chooses, so the others do not know the seventh token
    assert lengths == [(42, 43)] * 2


def test_lost_keys_and_values_are_computed_again(llama):
    """Within rounding they are those of a model alone, at every layer, padding or not, in pieces or at once."""
    inputs = prompt()
    with torch.no_grad():
        alone = llama(**inputs, use_cache=True).past_key_values
    stores = {}

    def work(comm):
        with shard_generation(llama, comm, shards=small(4)) as cache, torch.no_grad():
            try:
                llama(**inputs, past_key_values=cache)
                if comm.rank == 2:
                    return
                llama(inputs["input_ids"][:, :1], past_key_values=cache)
            except RankFailedError:
                comm = comm.shrink()
                assert list(cache.recover(comm).owned) == [2]
                stores[comm.rank] = cache.sharded_layers

    run_local(work, ranks=4)
    length = inputs["input_ids"].shape[1]
    for index, layer in enumerate(alone.layers):
        parts = [layers[index].store for layers in stores.values()]
        assert sorted(torch.cat([part.positions for part in parts]).tolist()) == list(range(length))
        for part in parts:
            for got, whole in ((part.k, layer.keys), (part.v, layer.values)):
                limit = 1e-5 * float(whole.abs().max())
                torch.testing.assert_close(got, whole[:, :, part.positions], rtol=0, atol=limit)


def test_embeddings_cannot_be_computed_again(llama):
    embeddings = llama.get_input_embeddings()(prompt()["input_ids"]).detach()

    def work(comm, replicas):
        with shard_generation(llama, comm, shards=small(3, replicas)) as cache, torch.no_grad():
            llama(inputs_embeds=embeddings, past_key_values=cache)
            assert cache.inputs == {}
            if comm.rank == 1:
                return
            with pytest.raises(RankFailedError):
                llama(inputs_embeds=embeddings, past_key_values=cache)
            left = comm.shrink()
            if replicas == 2:
                assert cache.recover(left).lost == ()
                return
            with pytest.raises(
                ValueError, match=r"rank 1 held positions .* 37 of 37 tokens .* as embeddings"
            ) as caught:
                cache.recover(left)
            assert "use replicas=2" in str(caught.value)
            assert cache.comm is comm

    for replicas in (1, 2):
        run_local(lambda comm, replicas=replicas: work(comm, replicas), ranks=3)


def test_what_would_be_lost_is_told_before(llama):
    def work(comm):
        with shard_generation(llama, comm, shards=small(3), replicas=1) as cache:
            generate(llama, prompt(), 45, past_key_values=cache)
            told = str(cache.lost([0, 2]))
            assert told.startswith(
                "rank 1 held positions 2..3, 12..13, 18..21, 28..29 and 34..35; no copy is left of positions"
            )
            inputs = cache.inputs
            assert inputs["input_ids"].shape == inputs["attention_mask"].shape == (2, 44)
            assert inputs["attention_mask"][0, :5].tolist() == [0] * 5
            cache.crop(-4)
            assert cache.inputs["input_ids"].shape == (2, 40)
            cache.reset()
            assert cache.inputs == {}

    run_local(work, ranks=3)


def test_the_record_follows_beams(llama):
    def work(comm):
        with shard_generation(llama, comm, shards=small(2)) as cache:
            made = generate(llama, prompt(), 50, past_key_values=cache, num_beams=3)
            ids = cache.inputs["input_ids"]
            assert ids.shape == (6, 49)
            assert all((ids == row[:49]).all(1).any() for row in made.sequences[:, :49][:1])

    run_local(work, ranks=2)
