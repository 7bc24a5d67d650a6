"""Modes of generation in which a model has a second cache: drafts of its first layers, guidance."""

from copy import deepcopy

import pytest
import torch

from attention.huggingface.generation import shard_generation
from attention.huggingface.sharded_cache import ShardedCache
from tests.attention.huggingface.test_enable import on_ranks
from tests.attention.huggingface.test_hf_layers import LIMIT, build, prompt
from tests.thinning import alternating, covering
from topocomm import run_local

EARLY = {"assistant_early_exit": 1, "max_new_tokens": 24}
GUIDED = {"guidance_scale": 1.5, "max_new_tokens": 10, "do_sample": False}
NEGATIVE = {
    "negative_prompt_ids": prompt(9)["input_ids"],
    "negative_prompt_attention_mask": prompt(9)["attention_mask"],
}


def row():
    return {name: x[1:] for name, x in prompt().items()}


def assert_same_tokens(outputs, expected):
    for rank, got in enumerate(outputs):
        assert torch.equal(got, expected), f"rank {rank}"


@pytest.mark.parametrize(("family", "ranks"), alternating(["Llama", "Mistral", "Gemma2"], [1, 2, 3]))
def test_drafts_of_the_first_layers(family, ranks):
    """Among them drafts of many tokens that are undone at once, where a window would have let go of those before."""
    model = build(family)
    expected = model.generate(**row(), **EARLY, do_sample=False)
    passes = dict.fromkeys(range(3), 0)

    def count(layer):
        def hook(*_):
            passes[layer.self_attn.layer_idx] += 1

        return layer.register_forward_pre_hook(hook)

    hooks = [count(layer) for layer in model.model.layers]
    outputs = on_ranks(model, lambda _: model.generate(**row(), **EARLY, do_sample=False), ranks=ranks)
    for hook in hooks:
        hook.remove()
    assert_same_tokens(outputs, expected)
    assert passes[0] > passes[1] == passes[2] > 0
    assert model.config.num_hidden_layers == 3


def test_sampled_drafts():
    model = build("Llama")
    options = {"do_sample": True, "temperature": 1.5, "top_k": 40, **EARLY}
    torch.manual_seed(5)
    expected = model.generate(**row(), **options)
    torch.manual_seed(5)
    assert_same_tokens(on_ranks(model, lambda _: model.generate(**row(), **options)), expected)


def test_the_cache_is_that_of_the_model_and_not_of_its_drafts():
    model = build("Llama")

    def call(sharding):
        made = model.generate(**row(), **EARLY, do_sample=False, return_dict_in_generate=True)
        assert sharding.cache is made.past_key_values
        assert [layer.store.length for layer in sharding.cache.sharded_layers] == [30 + 24 - 1] * 3

    on_ranks(model, call)


def test_drafts_are_refused_where_one_cache_is_given():
    model = build("Llama")

    def work(comm):
        with shard_generation(model, comm) as cache:
            model.generate(**row(), **EARLY, past_key_values=cache)

    with pytest.raises(
        ValueError, match=r"assistant_early_exit need a cache of their own, .* use enable\(model, comm\)"
    ):
        run_local(work, ranks=2)
    assert model.config.num_hidden_layers == 3


@pytest.mark.parametrize(("given", "negative", "ranks"), covering([row, prompt], [False, True], [3, 1, 2]))
def test_classifier_free_guidance(given, negative, ranks):
    model, inputs, options = build("Gemma2"), given(), dict(GUIDED)
    if negative:
        options |= {name: x[-len(inputs["input_ids"]) :] for name, x in NEGATIVE.items()}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**inputs, **options)
    assert apart(expected.scores, model.generate(**inputs, **options | {"guidance_scale": 1.0}).scores) > 100 * LIMIT
    for got in on_ranks(model, lambda _: model.generate(**inputs, **options), ranks=ranks):
        assert torch.equal(got.sequences, expected.sequences)
        assert apart(got.scores, expected.scores) <= LIMIT


def apart(scores, others):
    return float((torch.stack(scores) - torch.stack(others)).abs().max())


def test_guidance_where_one_cache_is_given():
    model = build("Llama")

    def work(comm):
        with shard_generation(model, comm) as cache:
            return model.generate(**prompt(), **GUIDED, past_key_values=cache)

    assert_same_tokens(run_local(work, ranks=2), model.generate(**prompt(), **GUIDED))


def test_a_plain_forward_pass_begins_a_cache_of_its_own():
    model = build("Mistral")

    def call(sharding):
        with torch.no_grad():
            model.generate(**prompt(), max_new_tokens=1, pad_token_id=0)
            before = sharding.cache
            made = model(**prompt())
        assert isinstance(made.past_key_values, ShardedCache)
        assert made.past_key_values is not sharding.cache is before
        return made.logits, made.past_key_values.inputs["input_ids"]

    with torch.no_grad():
        expected = model(**prompt()).logits
    present = prompt()["attention_mask"].bool()
    for logits, ids in on_ranks(model, call):
        assert float((logits - expected)[present].abs().max()) <= LIMIT
        assert torch.equal(ids, prompt()["input_ids"])


@pytest.mark.parametrize(("family", "ranks"), alternating(["Llama", "Mistral", "Gemma2"], [1, 2, 3]))
def test_a_prompt_is_gone_on_from_several_times(family, ranks):
    model = build(family)
    ids = torch.randint(3, 97, (2, 30), generator=torch.Generator().manual_seed(4))
    ends = [torch.cat([ids, more], 1) for more in (ids[:, 3:8], ids[:, 9:10], ids[:, 3:8])]

    def go_on(cache, end):
        return model.generate(end, past_key_values=cache, max_new_tokens=6, do_sample=False, pad_token_id=0)

    expected = [go_on(None, end) for end in ends]

    def work(comm):
        with shard_generation(model, comm) as cache:
            with torch.no_grad():
                model(ids[:, :-1], past_key_values=cache)
                model(ids[:, -1:], past_key_values=cache)
            got = [go_on(deepcopy(cache), end) for end in ends]
            return got, cache.get_seq_length(), deepcopy(cache.fresh()).get_seq_length()

    for got, tokens, none in run_local(work, ranks=ranks):
        assert all(map(torch.equal, got, expected))
        assert tokens == ids.shape[1] and none == 0
