"""Decode steps go the shortest way where they are alike, and with the same tokens the checked way where not."""

import gc
from weakref import ref

import pytest
import torch

from attention.huggingface import hf_layers, layer_step
from attention.huggingface.generation import shard_generation
from tests.attention.huggingface.tiny_llama import NEW, build, generate, small
from topocomm import run_local

LAYERS = 2
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 24},
    "Gemma2": {"head_dim": 16, "sliding_window": 24},
    "GptOss": {"head_dim": 16, "sliding_window": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.fixture
def short(monkeypatch):
    """Whether each call that was given a step went the shortest way."""
    taken, bind = [], layer_step.bind_layer

    def counted(*given):
        bound = bind(*given)
        if bound is None:
            return None

        def attend(*call):
            out = bound[1](*call)
            taken.append(out is not None)
            return out

        return bound[0], attend

    monkeypatch.setattr(hf_layers, "bind_layer", counted)
    return taken


def one_row(prompt):
    return {name: x[1:2] for name, x in prompt.items()}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_steps_go_the_shortest_way_with_the_same_tokens(short, prompt, name, ranks):
    model = build(name, **MODELS[name])
    expected = generate(model, one_row(prompt))

    def work(comm):
        with shard_generation(model, comm, shards=small(ranks)) as cache:
            got = generate(model, one_row(prompt), past_key_values=cache)
            positions = [layer.store.positions for layer in cache.sharded_layers]
            shown = [(layer.keys, layer.store.k) for layer in cache.sharded_layers]
        assert all(torch.equal(at, at.sort().values) for at in positions)
        assert all(torch.equal(keys, kept) for keys, kept in shown)
        return got

    for got in run_local(work, ranks=ranks):
        assert torch.equal(got.sequences, expected.sequences)
        assert torch.allclose(torch.stack(got.logits), torch.stack(expected.logits), atol=1e-3)
    assert all(short)
    least = 0.8 if name == "Llama" else 0.4  # blocks of 2 tokens: a window drops some in every other step
    assert len(short) >= least * ranks * LAYERS * (NEW - 2)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_batches_padded_at_the_left_go_the_shortest_way(short, prompt, name, ranks):
    every_expert = {"num_experts_per_tok": 4} if name == "GptOss" else {}  # of two as good, either may be taken
    model = build(name, **MODELS[name] | every_expert)
    expected = generate(model, prompt)
    assert (prompt["attention_mask"] == 0).any()

    def work(comm):
        with shard_generation(model, comm, shards=small(ranks)) as cache:
            return generate(model, prompt, past_key_values=cache)

    for got in run_local(work, ranks=ranks):
        assert torch.equal(got.sequences, expected.sequences)
        assert torch.allclose(torch.stack(got.logits), torch.stack(expected.logits), atol=1e-3)
    assert all(short)
    least = 0.8 if name == "Llama" else 0.4
    assert len(short) >= least * ranks * LAYERS * (NEW - 2)


@pytest.mark.parametrize("place", [0, 7, 20])
def test_padding_that_changes_or_lies_inside_goes_the_checked_way(short, place):
    model = build()
    ids = torch.randint(3, 199, (2, 30), generator=torch.Generator().manual_seed(5))

    def logits(cache):
        mask = torch.ones(2, 30, dtype=torch.int64)
        mask[0, :3] = 0
        kept = [model(ids, attention_mask=mask, past_key_values=cache).logits[:, -1]]
        for number in range(8):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1)
            if number == 4:
                mask[1, place : place + 2] = 0
            positions = (mask.sum(1) - 1)[:, None]
            kept.append(
                model(
                    ids[:, number : number + 1], attention_mask=mask, position_ids=positions, past_key_values=cache
                ).logits[:, -1]
            )
        return torch.stack(kept)

    with torch.no_grad():
        expected = logits(transformers_cache(model))

    def work(comm):
        with shard_generation(model, comm, shards=small(2)) as cache, torch.no_grad():
            return logits(cache)

    for got in run_local(work, ranks=2):
        assert torch.allclose(got, expected, atol=1e-3)
    assert short.count(False) == 2 * LAYERS  # once a rank and layer: then steps are bound again, or none are


def passes(model, ids, cache):
    """Logits of what may come between steps: each function passes tokens, or changes the cache."""
    logits = []

    def step(tokens, **more):
        logits.append(model(tokens, past_key_values=cache, **more).logits[:, -1])

    def padded():
        mask = torch.ones(len(ids), cache.get_seq_length() + 1, dtype=torch.int64)
        mask[:, :5] = 0
        step(ids[:, 4:5], attention_mask=mask, position_ids=torch.tensor([[cache.get_seq_length() - 5]]))

    between = {
        "three tokens": lambda: step(ids[:, 3:6]),
        "a crop": lambda: cache.crop(-2),
        "rows in another order": lambda: cache.reorder_cache(torch.tensor([1, 0])),
        "fewer rows": lambda: cache.batch_select_indices(torch.tensor([1])),
        "more rows": lambda: cache.batch_repeat_interleave(2),
        "padding": padded,
    }
    rows = torch.arange(2)
    step(ids)
    for name, change in between.items():
        for token in range(3):
            step(ids[rows, token : token + 1])
        if name == "rows in another order":
            rows = rows.flip(0)
        elif name == "fewer rows":
            rows = rows[1:]
        elif name == "more rows":
            rows = rows.repeat_interleave(2)
        if name in ("three tokens", "padding"):
            before, ids = ids, ids[rows]
            change()
            ids = before
        else:
            change()
    return logits


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_not_alike_goes_the_checked_way(short, ranks):
    model = build()
    ids = torch.randint(3, 199, (2, 30), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = passes(model, ids, transformers_cache(model))

    def work(comm):
        with shard_generation(model, comm, shards=small(ranks)) as cache, torch.no_grad():
            return passes(model, ids, cache)

    for got in run_local(work, ranks=ranks):
        assert len(got) == len(expected)
        for number, (x, y) in enumerate(zip(got, expected, strict=True)):
            assert torch.allclose(x, y, atol=1e-3), f"pass {number}"
    assert any(short)


def transformers_cache(model):
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def test_single_tokens_after_a_reset_begin_anew(short):
    model = build()
    ids = torch.randint(3, 199, (1, 12), generator=torch.Generator().manual_seed(5))

    def logits(cache):
        return torch.cat([model(tokens, past_key_values=cache).logits for tokens in ids.split(1, 1)], 1)

    def work(comm):
        with shard_generation(model, comm) as cache, torch.no_grad():
            before = logits(cache)
            cache.reset()
            return before, logits(cache), cache.get_seq_length()

    for before, after, length in run_local(work, ranks=2):
        assert torch.equal(before, after) and length == 12
    assert any(short)


def test_memory_that_has_grown_out_is_given_back_at_once():
    model = build()

    def work(comm):
        with shard_generation(model, comm) as cache, torch.no_grad():
            model(torch.arange(3, 33)[None], past_key_values=cache)
            places = []
            for _ in range(40):
                model(torch.full((1, 1), 7), past_key_values=cache)
                storage = cache.sharded_layers[0].store.storage[0]
                if not places or places[-1]() is not storage:
                    places.append(ref(storage))
                del storage
            return [place() is None for place in places]

    gc.disable()
    try:
        (gone,) = run_local(work, ranks=1)
    finally:
        gc.enable()
    assert len(gone) > 1 and all(gone[:-1])


def test_sinks_that_change_are_seen():
    model = build("GptOss", **MODELS["GptOss"])
    ids = torch.randint(3, 199, (1, 30), generator=torch.Generator().manual_seed(5))

    def logits(cache):
        out = []
        for number, tokens in enumerate([ids, *ids[:, :6].split(1, 1)]):
            if number == 4:
                for layer in model.model.layers:
                    layer.self_attn.sinks.add_(3.0)
            out.append(model(tokens, past_key_values=cache).logits[:, -1])
        for layer in model.model.layers:
            layer.self_attn.sinks.sub_(3.0)
        return torch.cat(out)

    with torch.no_grad():
        expected = logits(transformers_cache(model))

        def work(comm):
            with torch.no_grad(), shard_generation(model, comm) as cache:
                return logits(cache)

        (got,) = run_local(work, ranks=1)
    assert torch.allclose(got, expected, atol=1e-3)
    assert not torch.allclose(expected[4], expected[3], atol=1e-2)
