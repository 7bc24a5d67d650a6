"""Layers with sliding windows, soft-capped scores and sinks: what transformers gives alone, with eager attention.

Models are random and tiny. Where a test says that a feature matters, it is seen to change the tokens.
"""

import pytest
import torch
import transformers

from attention.cache.shards import ShardMap
from attention.huggingface.generation import enable, shard_generation
from tests.once import once
from tests.thinning import alternating
from topocomm import run_local

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 160,
    "initializer_range": 0.3,
    "head_dim": 8,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
WINDOW = 12
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": WINDOW},
    "Qwen2 with windows": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW},
    "Qwen3 with windows": {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": WINDOW},
    "Gemma2": {"sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "GptOss": {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
}
MORE = {
    "Gemma3Text": {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "Phi3": {"sliding_window": WINDOW},
    "Cohere2": {"sliding_window": WINDOW},
    "Olmo3": {"sliding_window": WINDOW},
    "Starcoder2": {"sliding_window": WINDOW},
    "Mixtral": {"sliding_window": WINDOW, "num_local_experts": 2},
    "Ministral": {"sliding_window": WINDOW},
    "SmolLM3": {},
}
LIMIT = 1e-4
TOKENS, NEW = 30, 10
FEW = {"max_new_tokens": 6}


@once
def build(family):
    """The model of a family, with eager attention; sinks are as large as scores."""
    torch.manual_seed(1)
    name, changes = family.split()[0], {**FAMILIES, **MORE}[family]
    if len(changes.get("layer_types", [])) > SIZES["num_hidden_layers"]:
        changes = {**changes, "num_hidden_layers": len(changes["layer_types"])}
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.shape == (4,):
            parameter.data.uniform_(-1, 3)
    return model


@once
def prompt(tokens=TOKENS):
    """Two rows, of which the first has padding on its left that reaches into the last window."""
    ids = torch.randint(3, 97, (2, tokens), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, : tokens * 2 // 3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generate(model, inputs, **options):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)


def small(ranks):
    return ShardMap(ranks, virtual_shards=8, block_size=2)


def sharded(model, inputs, ranks, *, method="tree", **options):
    """What every rank generates, and the tokens that it holds in every layer."""

    def work(comm):
        with enable(model, comm, shards=small(ranks), method=method) as sharding:
            made = generate(model, inputs, **options)
            return made, [layer.store.n_local for layer in sharding.cache.sharded_layers]

    return run_local(work, ranks=ranks)


def assert_same(outputs, expected):
    for rank, (got, _) in enumerate(outputs):
        assert torch.equal(got.sequences, expected.sequences), f"rank {rank}"
        apart = (torch.stack(got.logits) - torch.stack(expected.logits)).abs().max()
        assert float(apart) <= LIMIT, f"rank {rank}"


@pytest.mark.parametrize(("family", "ranks"), alternating(FAMILIES, [3, 1, 2, 4], every=3, others=pytest.mark.long))
def test_greedy_tokens_and_logits_of_a_left_padded_batch(family, ranks):
    model = build(family)
    assert_same(sharded(model, prompt(), ranks, **FEW), generate(model, prompt(), **FEW))


@pytest.mark.parametrize("family", MORE)
def test_more_families(family):
    model = build(family)
    assert_same(sharded(model, prompt(), 3, **FEW), generate(model, prompt(), **FEW))


@pytest.mark.parametrize("method", ["ring", "allreduce"])
@pytest.mark.parametrize("family", ["Gemma2", "GptOss"])
def test_other_methods(family, method):
    model = build(family)
    assert_same(sharded(model, prompt(), 3, method=method, **FEW), generate(model, prompt(), **FEW))


@pytest.mark.parametrize(
    ("family", "part", "value"),
    [
        ("Mistral", "sliding_window", WINDOW + 1),
        ("Gemma2", "sliding_window", WINDOW + 1),
        ("Gemma2", "attn_logit_softcapping", None),
        ("GptOss", "sinks", -100.0),
    ],
)
def test_the_features_matter(family, part, value):
    """The tests above would not notice a feature that is lost if it changed nothing."""
    model = build(family)
    expected = generate(model, prompt()).logits[0]
    holders = [model.config, *(layer.self_attn for layer in model.model.layers)]
    before = [(holder, getattr(holder, part)) for holder in holders if getattr(holder, part, None) is not None]
    try:
        for holder, was in before:
            if isinstance(was, torch.nn.Parameter):
                setattr(holder, part, torch.nn.Parameter(torch.full_like(was, value)))
            else:
                setattr(holder, part, value)
        changed = generate(model, prompt()).logits[0]
    finally:
        for holder, was in before:
            setattr(holder, part, was)
    assert float((changed - expected).abs().max()) > 100 * LIMIT


# What a window lets go of.


@pytest.mark.parametrize("family", ["Mistral", "Gemma2"])
def test_layers_with_a_window_hold_about_the_window_over_all_ranks(family):
    model = build(family)
    outputs = sharded(model, prompt(), 3, max_new_tokens=60)
    assert_same(outputs, generate(model, prompt(), max_new_tokens=60))
    held = [sum(counts) for counts in zip(*(counts for _, counts in outputs), strict=True)]
    windows = [WINDOW if family == "Mistral" or layer % 2 == 0 else None for layer in range(3)]
    for tokens, window in zip(held, windows, strict=True):
        assert tokens == TOKENS + 60 - 1 if window is None else WINDOW - 1 <= tokens < WINDOW + 2 * 2


def test_a_long_prompt_is_let_go_of_layer_by_layer():
    """After the first pass no layer holds the prompt, so at most one did at a time."""
    model = build("Mistral")

    def work(comm):
        with shard_generation(model, comm, shards=small(2)) as cache, torch.no_grad():
            model(**prompt(120), past_key_values=cache)
            return [layer.store.used_bytes for layer in cache.sharded_layers], cache.allocated_bytes

    facts = run_local(work, ranks=2)
    token_bytes = 2 * 2 * 2 * 8 * 4
    assert all(sum(used) < (WINDOW + 4) * token_bytes for used in zip(*(used for used, _ in facts), strict=True))
    assert all(allocated <= 3 * 4 * (WINDOW + 4) * token_bytes for _, allocated in facts)


def test_beams_with_windows():
    model = build("Gemma2")
    expected = generate(model, prompt(), num_beams=3, max_new_tokens=20)
    for got, _ in sharded(model, prompt(), 2, num_beams=3, max_new_tokens=20):
        assert torch.equal(got.sequences, expected.sequences)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "GptOss"])
def test_assisted_generation_undoes_tokens_that_were_drafted(family):
    """More than one query a pass, with exact causal bounds; drafts are undone when windows have let go of tokens."""
    model = build(family)
    pattern = torch.randint(3, 97, (1, 6), generator=torch.Generator().manual_seed(4)).repeat(1, 6)
    inputs = {"input_ids": pattern, "attention_mask": torch.ones_like(pattern)}
    expected = generate(model, inputs, max_new_tokens=24)
    for got, _ in sharded(model, inputs, 3, max_new_tokens=24, prompt_lookup_num_tokens=5):
        assert torch.equal(got.sequences, expected.sequences)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2"])
def test_crop_and_go_on(family):
    """Two tokens are undone, as many as a block has, and three others follow at once."""
    model = build(family)
    ids, others = prompt()["input_ids"][1:], torch.tensor([[5, 6, 7]])

    def talk(cache, *, begin):
        with torch.no_grad():
            model(ids[:, :begin], past_key_values=cache)
            for at in range(begin, TOKENS):
                model(ids[:, at : at + 1], past_key_values=cache)
            cache.crop(torch.tensor(-2))  # as transformers 5.17 does
            return model(others, past_key_values=cache).logits

    with torch.no_grad():
        expected = model(torch.cat([ids[:, :-2], others], 1)).logits[:, -3:]

    def work(comm):
        with shard_generation(model, comm, shards=small(3)) as cache:
            return talk(cache, begin=1), talk_again(cache)

    def talk_again(cache):
        cache.reset()
        return talk(cache, begin=TOKENS)

    for both in run_local(work, ranks=3):
        for got in both:
            assert float((got - expected).abs().max()) <= LIMIT


def test_undoing_more_than_a_window_has_left():
    model = build("Mistral")

    def work(comm):
        with shard_generation(model, comm, shards=small(2)) as cache, torch.no_grad():
            model(**prompt(), past_key_values=cache)
            cache.crop(-9)

    with pytest.raises(ValueError, match=r"token 21 sees the window of 12 before it, but those before 17 were dropped"):
        run_local(work, ranks=2)


# What is refused.


def refused(model, call):
    def work(comm):
        with enable(model, comm) as sharding, torch.no_grad():
            call(sharding)

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each test looks at the message
        run_local(work, ranks=2)
    return str(caught.value)


def test_a_mask_that_transformers_did_not_pass(monkeypatch):
    model = build("Llama")
    attention = type(model.model.layers[0].self_attn)
    plain = attention.forward

    def forgetful(self, *args, attention_mask=None, **kwargs):
        return plain(self, *args, attention_mask=None if self.layer_idx == 1 else attention_mask, **kwargs)

    monkeypatch.setattr(attention, "forward", forgetful)
    message = refused(model, lambda sharding: generate(model, prompt()))
    assert "layer 1 (LlamaAttention) got no mask" in message
    assert "generate with this model on one rank" in message


def test_a_layer_that_asks_for_another_window_than_the_configuration(monkeypatch):
    model = build("Gemma2")
    monkeypatch.setattr(model.model.layers[2].self_attn, "sliding_window", 7)
    message = refused(model, lambda sharding: generate(model, prompt()))
    assert "layer 2 (Gemma2Attention) has a mask of window 12, asks for sliding_window=7" in message


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("Llama4Text", {"attention_chunk_size": 8}, "layer 0 is of type chunked_attention"),
        ("Qwen3Next", {"num_hidden_layers": 4}, "layer 0 is of type linear_attention"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, "all layers attend to later tokens too"),
        ("Gemma4Text", {"num_kv_shared_layers": 2, "num_hidden_layers": 6}, "num_kv_shared_layers=2"),
        ("DeepseekV32", {}, "layer 0 is of type indexed_attention"),
        ("T5", {}, "a decoder attends to an encoder"),
    ],
)
def test_models_that_are_not_covered(name, changes, part):
    from attention.huggingface.hf_layers import layer_windows

    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    with pytest.raises(ValueError, match="a sharded cache covers layers with causal attention") as caught:
        layer_windows(config)
    assert part in str(caught.value)
    assert "generate with this model on one rank, without attention.huggingface.generation" in str(caught.value)
