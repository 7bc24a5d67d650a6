"""Generation with 1/P of the weights a rank: the tokens of plain transformers."""

import copy
import gc
from copy import deepcopy
from pathlib import Path
from weakref import ref

import pytest
import torch
from transformers import AutoModelForCausalLM

from attention.huggingface.generation import enable
from attention.huggingface.weights import head_split, slices, split_layers
from attention.huggingface.weights.load_sharded import load_sharded
from attention.huggingface.weights.sharded_weights import put_slices
from tests.attention.huggingface import tiny_latents
from tests.attention.huggingface.test_hf_layers import build
from tests.thinning import thinned
from topocomm import OperatorError, run_local

FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "GptOss", "Gemma3Text", "Phi3", "Olmo3", "Starcoder2")
CASES = [(family, ranks) for family in FAMILIES for ranks in (1, 2, 3, 4, 8)]
OPTIONS = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True, "output_logits": True}
LIMIT = 1e-4


def inputs_of(batch, tokens=40):
    ids = torch.randint(3, 97, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones_like(ids)
    mask[1:, :9] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def on_ranks(model, ranks, call, **options):
    """What `call(model, sharding)` returns on every rank, each with a model of its own."""
    models = [deepcopy(model) for _ in range(ranks)]

    def work(comm):
        with torch.no_grad(), enable(models[comm.rank], comm, weights="sharded", **options) as sharding:
            return call(models[comm.rank], sharding)

    return run_local(work, ranks=ranks)


def assert_same(got, want):
    assert torch.equal(got.sequences, want.sequences)
    for ours, theirs in zip(got.logits, want.logits, strict=True):
        assert float((ours - theirs).abs().max()) <= LIMIT


@pytest.mark.parametrize(("family", "ranks"), thinned(CASES, every=4))
def test_tokens_are_those_of_plain_transformers(family, ranks):
    model = build(family)
    for batch in (1, 2):
        want = model.generate(**inputs_of(batch), max_new_tokens=4, **OPTIONS)
        for got in on_ranks(
            model, ranks, lambda m, _, n=batch: m.generate(**inputs_of(n), max_new_tokens=4, **OPTIONS)
        ):
            assert_same(got, want)


@pytest.mark.parametrize("family", ["DeepseekV3", "DeepseekV2"])
def test_layers_that_keep_latents(family):
    """Their up-projections stay whole: absorbed queries are multiplied by them."""
    model = tiny_latents.build(family)
    want = model.generate(**inputs_of(2), max_new_tokens=8, **OPTIONS)
    for got in on_ranks(model, 2, lambda m, _: m.generate(**inputs_of(2), max_new_tokens=8, **OPTIONS)):
        assert_same(got, want)


def test_a_rank_holds_its_part_of_the_weights():
    model = build("Llama")
    held = on_ranks(model, 4, lambda m, sharding: (sharding.cache.weights, sum(x.nbytes for x in m.parameters())))
    whole = sum(x.nbytes for x in model.parameters())
    for weights, in_model in held:
        assert weights.whole_bytes == whole
        assert weights.held_bytes == pytest.approx(whole / 4, rel=0.03)
        assert in_model <= weights.held_bytes


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_cutting_never_holds_more_than_the_whole_weights(family):
    model = deepcopy(build(family))
    modules = [*slices.split_modules(model, 2, 1)]
    whole, kept = sum(x.nbytes for x in model.parameters()), [ref(x) for x in model.parameters()]
    parts = []

    def read(weight, cut):
        assert sum(x().nbytes for x in kept if x() is not None) + sum(x.nbytes for x in parts) <= whole
        parts.append(cut.of(weight.data.__getitem__, weight.ndim))
        return parts[-1]

    put_slices(model, modules, read)
    assert len(parts) > 10


@pytest.mark.parametrize("load", [True, False])
def test_a_file_that_was_read_is_let_go(tmp_path, load):
    """One weight that lies in it would keep all pages that were read."""
    build("Llama").save_pretrained(tmp_path)

    def mapped():
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    whole = [] if load else [AutoModelForCausalLM.from_pretrained(tmp_path) for _ in range(2)]
    assert mapped() is not load

    def work(comm):
        model = load_sharded(tmp_path, comm) if load else whole[comm.rank]
        with enable(model, comm, weights="sharded"):
            return model

    kept = run_local(work, ranks=2)
    gc.collect()
    assert not mapped()
    assert len(kept) == 2


def test_slices_are_not_saved(tmp_path):
    models = [copy.deepcopy(build("Llama")) for _ in range(2)]

    def work(comm):
        model = models[comm.rank]
        with enable(model, comm, weights="sharded"):
            pass
        model.save_pretrained(tmp_path / str(comm.rank))

    with pytest.raises(ValueError, match="save_pretrained: each rank has its slices of this model's weights alone"):
        run_local(work, ranks=2)
    assert not any(tmp_path.iterdir())


def test_prompts_in_chunks_and_further_prompts():
    model = build("Qwen3")
    parts = [inputs_of(2)["input_ids"][:, at : at + 14] for at in (0, 14, 28)]

    def logits(call, **first):
        given, seen = dict(first), []
        for part in parts:
            out = call(input_ids=part, **given)
            given = {"past_key_values": out.past_key_values}
            seen.append(out.logits)
        return torch.cat(seen, 1)

    with torch.no_grad():
        want = logits(model, use_cache=True)
    for got in on_ranks(model, 2, lambda m, sharding: logits(m, past_key_values=sharding.cache)):
        assert float((got - want).abs().max()) <= LIMIT


def test_after_disable_all_ranks_compute_the_plain_model_together():
    model = build("Llama")
    with torch.no_grad():
        want = model(**inputs_of(2)).logits

    def call(own, sharding):
        sharding.disable()
        return own(**inputs_of(2)).logits

    for got in on_ranks(model, 3, call):
        assert float((got - want).abs().max()) <= LIMIT


def test_what_does_not_go_together_is_refused():
    model = build("Llama")
    with pytest.raises(OperatorError, match='order="canonical" needs weights="replicated"'):
        on_ranks(model, 2, lambda *_: None, order="canonical")
    with pytest.raises(OperatorError, match="weights must be one of replicated, sharded, got 'quartered'"):
        run_local(lambda comm: enable(model, comm, weights="quartered"), ranks=1)


def test_ranks_that_share_a_model_are_told_so():
    model = build("Llama")
    shared = deepcopy(model)
    with pytest.raises(OperatorError, match="ranks on threads need a model each"):
        run_local(lambda comm: enable(shared, comm, weights="sharded"), ranks=2)


def test_a_lost_rank_takes_its_weights_along():
    def call(_, sharding):
        with pytest.raises(OperatorError, match="weights are sharded, so a lost rank held some"):
            sharding.cache.recover(object())

    on_ranks(build("Llama"), 2, call)


def another_rows(part):
    """Of matrices with 48 rows the first half, whoever asks; their columns follow the rule."""

    def cut(weight, axis, packed, ranks, rank, unit=1):
        return part(weight, axis, packed, ranks, 0 if weight.shape[axis] == 48 else rank, unit)

    return cut


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (slices, "_cut", another_rows),
        (head_split, "groups_of_heads", lambda groups: lambda heads, group: groups(slice(0, 2), group)),
        (split_layers, "_sum", lambda _: lambda comm, own: own),
    ],
    ids=["slice", "heads", "sum"],
)
def test_what_another_rank_has_is_seen(monkeypatch, where, name, fault):
    model = build("Llama")
    want = model.generate(**inputs_of(1), max_new_tokens=8, **OPTIONS)
    monkeypatch.setattr(where, name, fault(getattr(where, name)))
    got = on_ranks(model, 2, lambda m, _: m.generate(**inputs_of(1), max_new_tokens=8, **OPTIONS))
    assert any(float((x.logits[0] - want.logits[0]).abs().max()) > LIMIT for x in got)
