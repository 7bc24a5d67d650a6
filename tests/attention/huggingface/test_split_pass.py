"""Each rank takes its own tokens of a prompt through the model: the same tokens and logits as alone."""

import numpy as np
import pytest
import torch

from attention.cache.shards import ShardMap
from attention.huggingface import ring_or_gather, split_pass
from attention.huggingface.generation import enable
from attention.ulysses.sequence_cost import SequenceCost
from tests.attention.huggingface.tiny_llama import build
from tests.thinning import thinned
from topocomm import run_local

CLOSE = 2e-3
FAMILIES = {
    "Llama": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 20},
    "Gemma2": {"head_dim": 16, "sliding_window": 24},
    "Qwen3Moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "GptOss": {"head_dim": 16, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
}
OPTIONS = {"do_sample": False, "pad_token_id": 0}


def inputs_of(tokens, batch=2):
    ids = torch.randint(3, 199, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones_like(ids)
    mask[1:, :9] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


class Passes:
    """Counts the tokens of all passes through a model's decoder, over all ranks on threads."""

    def __init__(self, model):
        self.tokens = []
        self._layer = model.base_model.layers[0]

    def __enter__(self):
        self._hook = self._layer.register_forward_pre_hook(
            lambda _, given, named: self.tokens.append((given[0] if given else named["hidden_states"]).shape[1]),
            with_kwargs=True,
        )
        return self.tokens

    def __exit__(self, *_):
        self._hook.remove()


def on_ranks(model, ranks, call, **options):
    """What `call(sharding)` returns on every rank, and the tokens of all passes."""

    def work(comm):
        with enable(model, comm, **options) as sharding, torch.no_grad():
            return call(sharding)

    with Passes(model) as tokens:
        return run_local(work, ranks=ranks), tokens


@pytest.mark.parametrize("ring", [0, 8, 1], ids=["gathered", "ring", "heads"])
@pytest.mark.parametrize("ranks", [2, 3, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", thinned([*FAMILIES]))
def test_prompts_of_every_family(name, ranks, ring, monkeypatch):
    """A padded batch, and, by the ring and heads too, one sequence; then a further prompt after what is cached."""
    if ring:
        cost = SequenceCost(min(ring, ranks), 0.0, 0.0, 0.0, 0.0)
        monkeypatch.setattr(ring_or_gather, "GATHERED_BYTES", 0)
        monkeypatch.setattr(ring_or_gather, "best_cost", lambda comm, shape: cost)
    model, given = build(name, max_position_embeddings=256, **FAMILIES[name]), inputs_of(67, 1 if ring else 2)
    alone = model.generate(**given, **OPTIONS, max_new_tokens=6)
    more = torch.cat([alone, alone[:, 5:70]], 1)
    mask = torch.ones_like(more)
    mask[:, :67] = given["attention_mask"]
    then = model.generate(more, attention_mask=mask, **OPTIONS, max_new_tokens=6)
    with torch.no_grad():
        logits = model(**given).logits

    def call(sharding):
        tokens = model.generate(**given, **OPTIONS, max_new_tokens=6)
        cache = sharding.cache
        last = model.generate(more, attention_mask=mask, past_key_values=cache, **OPTIONS, max_new_tokens=6)
        return tokens, last, model(**given, past_key_values=cache.fresh()).logits, len(cache.shards.prompts)

    found, passed = on_ranks(model, ranks, call)
    present = given["attention_mask"].bool()
    for tokens, last, own, prompts in found:
        assert torch.equal(tokens, alone) and torch.equal(last, then) and prompts == 2
        assert float((own - logits)[present].abs().max()) < CLOSE * float(logits.abs().max())
    assert max(passed) <= -(-67 // ranks) + 2


@pytest.mark.parametrize("chunk", [24, 40])
def test_prompts_in_chunks_and_as_embeddings(chunk):
    model, given = build(max_position_embeddings=256), inputs_of(111)
    alone = model.generate(**given, **OPTIONS, max_new_tokens=5)
    embedded = model.get_input_embeddings()(given["input_ids"])

    def call(_):
        pieces = model.generate(**given, **OPTIONS, max_new_tokens=5, prefill_chunk_size=chunk)
        mask = given["attention_mask"]
        return pieces, model.generate(inputs_embeds=embedded, attention_mask=mask, **OPTIONS, max_new_tokens=5)

    found, passed = on_ranks(model, 2, call)
    for pieces, tokens in found:
        assert torch.equal(pieces, alone) and torch.equal(tokens, alone[:, 111:])
    assert max(passed) <= 57


@pytest.mark.parametrize("kept", [0, 1, 5, 90])
def test_logits_that_are_kept(kept):
    model, given = build(), inputs_of(64)
    with torch.no_grad():
        alone = model(**given, logits_to_keep=kept).logits
    found, _ = on_ranks(model, 3, lambda sharding: model(**given, logits_to_keep=kept).logits)
    for own in found:
        assert own.shape == alone.shape
        assert torch.allclose(own[0], alone[0], atol=CLOSE)


@pytest.mark.parametrize(
    ("options", "shards"),
    [({"replicas": 2}, None), ({}, ShardMap(3, block_size=2)), ({}, ShardMap(3, weights=(3, 1, 1)))],
    ids=["copies", "blocks of 2", "weights"],
)
def test_maps_of_every_kind(options, shards):
    model, given = build(), inputs_of(70)
    alone = model.generate(**given, **OPTIONS, max_new_tokens=6)

    def call(sharding):
        tokens = model.generate(**given, **OPTIONS, max_new_tokens=6)
        return tokens, sharding.cache.sharded_layers[0].store

    found, passed = on_ranks(model, 3, call, shards=shards, **options)
    assert all(torch.equal(tokens, alone) for tokens, _ in found) and max(passed) < 70
    own = [store.n_local for _, store in found]
    assert sum(own) == 75
    if options:
        assert sum(len(store._copies.known_positions) for _, store in found) == 75
    if shards is not None and shards.weights:
        assert own[0] > 40


def test_what_every_rank_passes_whole():
    """Few tokens, few after many, states of layers, canonical order, one rank; and what would be refused is."""
    model, given = build(max_position_embeddings=1024), inputs_of(60)
    few, long = inputs_of(15), inputs_of(700, 1)

    def with_gradients(comm):
        with enable(model, comm):
            model(**given)

    def passes(call, ranks=2, **options):
        return {*on_ranks(model, ranks, call, **options)[1]}

    assert passes(lambda _: model(**few)) == {15}
    assert passes(lambda _: model(**given, output_hidden_states=True)) == {60}
    assert passes(lambda _: model(**given), order="canonical") == {60}
    assert passes(lambda _: model(**given), ranks=1) == {60}

    def after_many(sharding):
        model(**long, past_key_values=sharding.cache)
        model(input_ids=given["input_ids"][:1, :20], past_key_values=sharding.cache)

    assert passes(after_many) == {350, 20}
    model.model.layers[0].mlp.convolution = torch.nn.Conv1d(4, 4, 3)
    assert passes(lambda _: model(**given)) == {60}
    del model.model.layers[0].mlp.convolution
    for wrong in ({"attention_mask": torch.ones(2, 59)}, {"position_ids": torch.zeros(2, 59, dtype=torch.int64)}):
        with pytest.raises((ValueError, RuntimeError)):
            passes(lambda _, wrong=wrong: model(**{**given, **wrong}))
    with pytest.raises(ValueError, match="require gradients"):
        run_local(with_gradients, ranks=2)


def test_a_pass_that_fails_leaves_the_next_one_alone():
    model, given = build(), inputs_of(60)
    alone = model.generate(**given, **OPTIONS, max_new_tokens=3)

    def fail(*_):
        raise ArithmeticError

    def call(sharding):
        hook = model.model.norm.register_forward_pre_hook(fail)
        sharding.cache.comm.barrier()
        with pytest.raises(ArithmeticError):
            model.generate(**given, **OPTIONS, max_new_tokens=3)
        sharding.cache.comm.barrier()
        hook.remove()
        assert all(layer.split is layer.whole is None for layer in sharding.cache.sharded_layers)
        sharding.cache.comm.barrier()
        return model.generate(**given, **OPTIONS, max_new_tokens=3)

    found, _ = on_ranks(model, 2, call)
    assert all(torch.equal(tokens, alone) for tokens in found)


FAULTS = {
    "a rank keeps all tokens": ("own", lambda split: np.arange(split.start, split.stop)),
    "positions are off by one": ("own", lambda split: split.shards.owned(split.comm.rank, split.start, split.stop) - 1),
    "the slice of another rank": (
        "own",
        lambda split: split.shards.owned((split.comm.rank + 1) % split.comm.size, split.start, split.stop),
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("fault", [*FAULTS, "keys in the order of ranks", "logits of another token"])
def test_planted_faults_change_the_result(fault, monkeypatch):
    model, given = build(), inputs_of(64, 1)
    with torch.no_grad():
        alone = model(**given, logits_to_keep=1).logits
    if fault in FAULTS:
        name, wrong = FAULTS[fault]
        monkeypatch.setattr(split_pass.Split, name, property(wrong))
    elif fault == "keys in the order of ranks":
        monkeypatch.setattr(
            split_pass.Split, "gathered", lambda split, rows, start, stop: split.comm.allgather(rows.contiguous())
        )
    else:
        monkeypatch.setattr(split_pass.Split, "states", lambda split, own: own[:, :1])
    found, _ = on_ranks(model, 2, lambda _: model(**given, logits_to_keep=1).logits)
    assert any(own.shape != alone.shape or float((own - alone).abs().max()) > 10 * CLOSE for own in found)
