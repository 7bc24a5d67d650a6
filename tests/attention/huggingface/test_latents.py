"""Models whose layers keep latents (DeepSeek V2, V3 and their layout): the same tokens and logits as alone."""

import copy

import pytest
import torch

from attention.cache.shards import ShardMap
from attention.huggingface import hf_attention, latents, ring_or_gather, split_pass
from attention.huggingface.generation import enable
from tests.attention.huggingface.tiny_latents import FAMILIES, RANK, ROTARY, SIZES, build
from tests.attention.huggingface.tiny_llama import generate, refused, small
from tests.once import once
from tests.thinning import thinned
from topocomm import run_local

LIMIT = 1e-4
NEW = 6


@once
def prompt(tokens=67, batch=2):
    """Rows of which all but the first have padding on their left."""
    ids = torch.randint(3, 199, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones_like(ids)
    mask[1:, :9] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def on_ranks(model, ranks, call, **options):
    def work(comm):
        with enable(model, comm, **options) as sharding, torch.no_grad():
            return call(sharding)

    return run_local(work, ranks=ranks)


def assert_same(outputs, expected):
    for rank, got in enumerate(outputs):
        assert torch.equal(got.sequences, expected.sequences), f"rank {rank}"
        apart = (torch.stack(got.logits) - torch.stack(expected.logits)).abs().max()
        assert float(apart) <= LIMIT, f"rank {rank}"


def check(model, inputs, ranks, options=None, **more):
    more = {"max_new_tokens": NEW, **more}
    outputs = on_ranks(model, ranks, lambda _: generate(model, inputs, **more), **(options or {}))
    assert_same(outputs, generate(model, inputs, **more))


@pytest.mark.parametrize("ranks", thinned([3, 1, 2, 4, 8]))
@pytest.mark.parametrize("inputs", [(67, 1), (67, 2), (12, 2)], ids=["shared out", "padded", "few tokens"])
def test_greedy_tokens_and_logits(inputs, ranks):
    check(build(), prompt(*inputs), ranks)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    """By what layers have, not by names: rotary numbers interleaved or in halves, scales of YaRN, experts."""
    model = build(family)
    assert len(latents.latent_modules(model)) == 2
    check(model, prompt(), 2)


@pytest.mark.parametrize(
    "options",
    [{"prefill_chunk_size": 24}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 4}],
    ids=["chunks", "beams", "drafts"],
)
def test_modes_of_generate(options):
    check(build(), prompt(61, 1), 3, **options)


@pytest.mark.parametrize("method", ["ring", "allreduce"])
def test_other_methods(method):
    check(build(), prompt(), 3, {"method": method, "shards": small(3)})


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("tokens", [7, 60])
def test_a_further_prompt_after_what_is_cached(tokens, ranks):
    model, given = build(), prompt()
    first = generate(model, given, max_new_tokens=NEW)
    more = torch.cat([first.sequences, first.sequences[:, 3 : 3 + tokens]], 1)
    mask = torch.cat([given["attention_mask"], torch.ones_like(more[:, 67:])], 1)
    then = {"input_ids": more, "attention_mask": mask}

    def call(sharding):
        generate(model, given, max_new_tokens=NEW)
        return generate(model, then, max_new_tokens=NEW, past_key_values=sharding.cache)

    assert_same(on_ranks(model, ranks, call), generate(model, then, max_new_tokens=NEW))


@pytest.mark.parametrize(("most", "limit"), [(0, 0), (1 << 30, 1 << 30), (1 << 30, 0)])
def test_absorbed_and_expanded_are_the_same(most, limit, monkeypatch):
    """In pieces of one token or whole; latents never go by the ring, whatever a layer's may take."""
    monkeypatch.setattr(latents, "GATHERED_BYTES", most)
    monkeypatch.setattr(ring_or_gather, "GATHERED_BYTES", 0)
    monkeypatch.setattr(split_pass, "ring_attention", None)
    monkeypatch.setattr(latents, "_is_absorbed", lambda module, q, *_: q.shape[2] <= limit)
    check(build(), prompt(67, 1), 2)
    check(build(), prompt(12), 2)


def test_what_is_absorbed_multiplies_less():
    """The sizes of DeepSeek V3: 2 x 512 - 256 products more a query, and 512 x 256 fewer."""
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128}
    module = torch.nn.Module()
    vars(module).update(sizes)
    module.kv_b_proj = torch.nn.Linear(1, 1, bias=False)
    rows = torch.empty(1, 1, 5, 576)
    asked = [latents._is_absorbed(module, torch.empty(1, 8, n, 192), rows, False) for n in (1, 170, 171)]
    assert asked == [True, True, False]
    assert latents._is_absorbed(module, torch.empty(1, 8, 500, 192), rows, True)


def test_a_rank_holds_its_latents_and_no_more():
    """576 numbers a token for DeepSeek V3; here 20, of each layer, on the one rank that owns it."""

    def call(sharding):
        generate(build(), prompt(), max_new_tokens=NEW)
        layers = sharding.cache.sharded_layers
        assert sharding.cache.used_bytes == 2 * 2 * layers[0].store.n_local * (RANK + ROTARY) * 4
        assert layers[0].keys.shape[1:] == (1, layers[0].store.n_local, RANK + ROTARY)
        assert layers[0].values.data_ptr() == layers[0].keys.data_ptr()
        return layers[0].store.n_local

    held = on_ranks(build(), 3, call)
    assert sum(held) == 67 + NEW - 1 and max(held) <= 16 + 67 / 3


def test_only_latents_are_gathered(monkeypatch):
    widths = []
    gathered = split_pass.Split.gathered

    def watched(split, rows, start, stop):
        widths.append(rows.shape[1:].numel())
        return gathered(split, rows, start, stop)

    monkeypatch.setattr(split_pass.Split, "gathered", watched)
    on_ranks(build(), 2, lambda _: build()(**prompt(67, 1), logits_to_keep=1))
    assert {*widths} == {RANK + ROTARY, SIZES["hidden_size"]}


def test_canonical_logits_are_the_same_bits_on_any_number_of_ranks():
    model, before = build(), torch.get_num_threads()
    torch.set_num_threads(1)  # products of torch may round by their number
    try:
        found = [
            torch.stack(one.logits)
            for ranks in (1, 2, 3, 4, 8)
            for one in on_ranks(model, ranks, lambda _: generate(model, prompt(), max_new_tokens=4), order="canonical")
        ]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)
    check(model, prompt(), 3, {"order": "canonical"})


def test_copies_and_beams_of_a_batch():
    check(build(), prompt(40), 3, {"replicas": 2}, num_beams=2)
    check(build(), prompt(40), 3, {"shards": ShardMap(3, weights=(2, 1, 0))})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype):
    model = copy.deepcopy(build("Youtu")).to(dtype)
    with torch.no_grad():
        alone = model(**prompt()).logits
    for own in on_ranks(model, 2, lambda _: model(**prompt()).logits):
        apart = (own - alone)[prompt()["attention_mask"].bool()].abs().max()
        assert own.dtype == dtype and float(apart) <= 0.1 * float(alone.abs().max())


def test_inside_autocast():
    model = build("Youtu")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        alone = model(**prompt()).logits

    def call(_):
        with torch.autocast("cpu", torch.bfloat16):
            return model(**prompt()).logits

    for own in on_ranks(model, 2, call):
        apart = (own - alone)[prompt()["attention_mask"].bool()].abs().max()
        assert float(apart) <= 0.1 * float(alone.abs().max())


def test_the_model_expands_again_after_it():
    model = build()
    module = model.model.layers[0].self_attn
    on_ranks(model, 2, lambda _: vars(module)["expand_kv"])
    assert "expand_kv" not in vars(module)
    generate(model, prompt())


class Quantised(torch.nn.Linear):
    """A projection of another kind, whose weight may not be what it multiplies by."""


@pytest.mark.parametrize("tokens", [67, 12])
def test_a_projection_that_is_no_plain_linear_expands(tokens):
    model = copy.deepcopy(build())
    for layer in model.model.layers:
        layer.self_attn.kv_b_proj.__class__ = Quantised
    check(model, prompt(tokens), 2)
    with pytest.raises(ValueError, match='order="canonical" multiplies by the weight of kv_b_proj, which in layer 0'):
        check(model, prompt(tokens), 2, {"order": "canonical"})


def test_bad_input_is_refused():
    model = build()
    wrong = {**prompt(), "attention_mask": prompt()["attention_mask"][:, 1:]}
    message = refused(model, lambda cache: generate(model, wrong, past_key_values=cache))
    assert "attention_mask must be [batch, tokens so far] = [2, 67]" in message
    assert "pass past_key_values=cache" in refused(model, lambda _: generate(model, prompt()))
    ids = torch.full((1, 257), 7)
    message = refused(model, lambda cache: model(ids, past_key_values=cache))
    assert "the sequence has 257 tokens, the model has 256 positions" in message


def _flipped_keys(module, q, parts=latents._up_projections):
    of_keys, of_values = parts(module, q)
    return of_keys.flip(0), of_values


def _rotary_first(layer, latent, rotary, *_, update=latents.LatentLayer.update, **options):
    return update(layer, *torch.cat([rotary, latent], -1).split([RANK, ROTARY], -1))


def _of_a_latent(scale, *rest, spec=hf_attention._spec_of, **more):
    return spec((RANK + ROTARY) ** -0.5, *rest, **more)


FAULTS = {
    "weights of other heads": (latents, "_up_projections", _flipped_keys),
    "rotary keys before latents": (latents.LatentLayer, "update", _rotary_first),
    "the scale of a latent": (hf_attention, "_spec_of", _of_a_latent),
}


@pytest.mark.every_case
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("tokens", [67, 12])
def test_planted_faults_change_the_result(fault, tokens, monkeypatch):
    model = build()
    alone = generate(model, prompt(tokens), max_new_tokens=NEW)
    monkeypatch.setattr(*FAULTS[fault])
    found = on_ranks(model, 2, lambda _: generate(model, prompt(tokens), max_new_tokens=NEW))
    assert float((torch.stack(found[0].logits) - torch.stack(alone.logits)).abs().max()) > 10 * LIMIT
