"""A model on GPUs: its cache, its attention and its prompt stay there, and tokens are those of transformers alone."""

from tests.attention.gpu.playing import playing, run_in  # isort: skip

import pytest
import torch

from attention import ShardMap, gpu
from attention.huggingface import hf_attention, latents
from attention.huggingface.generation import enable, shard_generation
from tests.attention.huggingface import tiny_latents
from tests.attention.huggingface.tiny_llama import build

OPTIONS = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}


def inputs_of(batch=2, tokens=21):
    ids = torch.randint(3, 199, (batch, tokens), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generated(model, inputs, *, ranks, taken=None, **ways):
    shards = ShardMap(ranks, virtual_shards=4, block_size=2)

    def work(comm):
        with shard_generation(model, comm, shards=shards, **ways) as cache:
            if taken is not None:
                cache.prefill(inputs["input_ids"])
            return model.generate(**inputs, **OPTIONS, past_key_values=cache)

    with playing(ranks) as world:
        return run_in(world, work)


@pytest.mark.parametrize(
    ("ways", "taken"),
    [
        ({}, None),
        pytest.param({}, "by the ring", marks=pytest.mark.long),
        ({"order": "canonical"}, None),
        pytest.param({"method": "ring"}, None, marks=pytest.mark.long),
        pytest.param({"method": "allreduce"}, None, marks=pytest.mark.long),
    ],
)
def test_tokens_are_those_of_one_process(ways, taken):
    model = build(num_hidden_layers=1)
    inputs = inputs_of()
    if taken:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    alone = model.generate(**inputs, **OPTIONS)
    for tokens in generated(model, inputs, ranks=2, taken=taken, **ways):
        assert torch.equal(tokens, alone)


@pytest.mark.parametrize(
    "ways", [{}, {"order": "canonical"}, {"expanded": True}], ids=["split", "canonical", "expanded"]
)
def test_latents(ways, monkeypatch):
    """Queries are absorbed where the decode kernel takes them; of more, canonical order takes some after the others."""
    model, inputs = tiny_latents.build(num_hidden_layers=1), inputs_of()
    asked = []
    absorbs = latents._is_absorbed

    def noted(*arguments):
        asked.append(absorbs(*arguments))
        return asked[-1]

    monkeypatch.setattr(latents, "_is_absorbed", noted)
    if ways.get("expanded"):
        monkeypatch.setattr(gpu, "DECODE_WIDEST", {2: 8, 4: 8})
    alone = model.generate(**inputs, **OPTIONS)
    for tokens in generated(model, inputs, ranks=2, **{name: x for name, x in ways.items() if name != "expanded"}):
        assert torch.equal(tokens, alone)
    assert {*asked} == {not ways.get("expanded", False)}


def test_windows_are_dropped_there():
    model = build("Mistral", num_hidden_layers=1, sliding_window=6)
    inputs = inputs_of(batch=1)
    alone = model.generate(**inputs, **OPTIONS)

    def work(comm):
        with enable(model, comm, shards=ShardMap(2, virtual_shards=4, block_size=2)) as sharding:
            tokens = model.generate(**inputs, **OPTIONS)
            return tokens, sharding.cache.sharded_layers[0].store.n_local

    with playing(2) as world:
        found = run_in(world, work)
    assert all(torch.equal(tokens, alone) for tokens, _ in found)
    assert sum(held for _, held in found) < 6 + 2 * 2


def test_sinks_are_read_from_a_gpu_once(monkeypatch):
    """Each reading waits for the GPU, in every layer at every step."""
    layer, sinks, read = torch.nn.Identity(), torch.tensor([0.5, 2.0]), []
    assert hf_attention._sinks_of(layer, sinks) == (0.5, 2.0)
    monkeypatch.setattr(hf_attention, "on_gpu", lambda x: x is not None)
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: read.append(1) or tolist(x))
    assert [hf_attention._sinks_of(layer, sinks) for _ in range(3)] == [(0.5, 2.0)] * 3 and len(read) == 1
    with torch.no_grad():
        sinks.add_(1)
    assert hf_attention._sinks_of(layer, sinks) == (1.5, 3.0)
    assert hf_attention._sinks_of(layer, sinks + 1) == (2.5, 4.0)
    assert hf_attention._sinks_of(layer, None) is None
