"""Which slice of each weight a rank holds."""

import pytest
import torch
from torch import nn

from attention.decode.sharded import part_of
from attention.huggingface.weights.slices import Cut, groups_of_heads, split_modules
from tests.attention.huggingface.tiny_llama import build
from topocomm import OperatorError


@pytest.mark.parametrize("ranks", [*range(1, 18), 64])
def test_parts_cover_everything_once_and_differ_by_one(ranks):
    for count in (1, 7, 16, 576):
        parts = [part_of(count, ranks, rank) for rank in range(ranks)]
        assert [i for part in parts for i in range(part.start, part.stop)] == [*range(count)]
        sizes = [part.stop - part.start for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", range(1, 18))
@pytest.mark.parametrize("group", [1, 3, 4])
def test_groups_give_each_query_head_its_key_head(ranks, group):
    heads = 12 * group if ranks > 9 else 3 * group
    for rank in range(min(ranks, heads)):
        own = part_of(heads, min(ranks, heads), rank)
        seen = []
        for queries, keys in groups_of_heads(own, group):
            each, left = divmod(queries.stop - queries.start, keys.stop - keys.start)
            assert left == 0
            seen += [(q, keys.start + i // each) for i, q in enumerate(range(queries.start, queries.stop))]
        assert seen == [(q, q // group) for q in range(own.start, own.stop)]


def test_a_cut_of_packed_matrices_takes_a_part_of_each():
    whole = torch.arange(2 * 8 * 3).reshape(2, 8, 3)
    part = Cut(-2, ((1, 3), (5, 7))).of(whole.__getitem__, 3)
    assert torch.equal(part, whole[:, [1, 2, 5, 6]])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("family", ["Llama", "Qwen3Moe", "GptOss"])
def test_all_ranks_together_hold_each_weight_once(family, ranks):
    sizes = {"num_experts": 8, "moe_intermediate_size": 64} if family == "Qwen3Moe" else {}
    model = build(family, head_dim=16, **sizes)
    held = {}
    for rank in range(ranks):
        for split in split_modules(model, ranks, rank):
            for name, cut in split.cuts.items():
                weight = split.module._parameters[name]
                marks = held.setdefault((split.name, name), torch.zeros(weight.shape, dtype=torch.int64))
                index = [slice(None)] * (cut.axis % weight.ndim)
                for start, stop in cut.ranges:
                    marks[(*index, slice(start, stop))] += 1
    assert held
    assert all(bool((marks == 1).all()) for marks in held.values())


def test_output_projections_are_cut_between_heads_where_nothing_lies_before_them():
    llama = {split.name: split for split in split_modules(build(), 3, 1)}
    assert llama["model.layers.0.self_attn.o_proj"].heads == slice(1, 2)
    assert llama["model.layers.0.self_attn.o_proj"].cuts["weight"].ranges == ((16, 32),)
    many = {split.name: split for split in split_modules(build(), 5, 1)}
    assert many["model.layers.0.self_attn.o_proj"].heads is None

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

    gated = build()
    gated.model.layers[0].self_attn.sub_norm = Gate()
    assert {x.name: x for x in split_modules(gated, 2, 1)}["model.layers.0.self_attn.o_proj"].heads is None


def test_what_cannot_be_split_is_refused_in_words():
    with pytest.raises(OperatorError, match="GPT2LMHeadModel names no plan by which its layers are split"):
        [*split_modules(_gpt2(), 2, 0)]
    llama = build()
    llama._tp_plan = {**llama._tp_plan, "model.layers.*.mlp.up_proj": "colwise_in_spirals"}
    with pytest.raises(OperatorError, match=r"layers\.0\.mlp\.up_proj is to be split as 'colwise_in_spirals'"):
        [*split_modules(llama, 2, 0)]
    with pytest.raises(OperatorError, match="5 ranks are more than the features"):
        [*split_modules(build("Qwen3Moe", head_dim=16, num_experts=4, moe_intermediate_size=32), 5, 0)]


def test_a_layer_of_another_kind_is_refused_in_words():
    class Quantized(nn.Linear):
        def forward(self, x):
            return super().forward(x.half().float())

    llama = build()
    llama.model.layers[1].mlp.up_proj = Quantized(64, 128, bias=False)
    with pytest.raises(OperatorError, match=r"layers\.1\.mlp\.up_proj is a Quantized, whose weights cannot be split"):
        [*split_modules(llama, 2, 0)]


def _gpt2():
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9))
