"""Layers with the weights of one rank compute what whole layers do."""

import pytest
import torch
from torch import nn

from attention.decode.communicators import calls_of
from attention.decode.sharded import part_of
from attention.huggingface.weights import split_layers
from attention.huggingface.weights.slices import Cut, SplitModule
from attention.huggingface.weights.split_layers import install
from topocomm import OperatorError, run_local

WIDTHS = (11, 6, 6)


def cut_to(comm, module, axis, **more):
    """The module with this rank's part of its weight, and of its bias where that is cut too."""
    part = part_of(module.weight.shape[axis], comm.size, comm.rank)
    cut = Cut(axis, ((part.start, part.stop),))
    whole = dict(module.named_parameters())
    names = [*whole] if axis == 0 else ["weight"]
    for name in names:
        module._parameters[name] = nn.Parameter(cut.of(whole[name].data.__getitem__, whole[name].ndim), False)
    return SplitModule(more.pop("name"), more.pop("style"), module, more.pop("attention", False), {"weight": cut})


def filled(module, seed):
    """The module with the same numbers in every thread."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.requires_grad_(False).parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return module


def linear(width_in, width_out, *, bias, seed):
    return filled(nn.Linear(width_in, width_out, bias=bias), seed)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("bias", [False, True])
def test_gathered_layers_give_all_features_on_all_ranks(ranks, bias):
    x = torch.randn(2, 3, 10)
    whole = [linear(10, width, bias=bias and seed != 1, seed=seed)(x) for seed, width in enumerate(WIDTHS)]

    def work(comm):
        layers = [linear(10, width, bias=bias and seed != 1, seed=seed) for seed, width in enumerate(WIDTHS)]
        named = zip("qkv", layers, strict=True)
        install(comm, [cut_to(comm, m, 0, name=f"a.{n}", style="colwise", attention=True) for n, m in named])
        return [[layer(given) for layer in layers] for given in (x, x[:1, :1].clone())]

    for of_rank in run_local(work, ranks=ranks):
        for got, want in zip(of_rank[0], whole, strict=True):
            torch.testing.assert_close(got, want)
        for got, want in zip(of_rank[1], whole, strict=True):
            torch.testing.assert_close(got, want[:1, :1])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_many_rows_go_in_pieces_of_the_same_result(ranks, monkeypatch):
    monkeypatch.setattr(split_layers, "PIECE_BYTES", 300)
    x = torch.randn(2, 21, 10)
    layers = [linear(10, width, bias=True, seed=seed) for seed, width in enumerate(WIDTHS)]
    whole = [layer(x) for layer in layers]
    down = linear(10, 7, bias=True, seed=9)(x)

    def work(comm):
        layers = [linear(10, width, bias=True, seed=seed) for seed, width in enumerate(WIDTHS)]
        modules = [
            cut_to(comm, m, 0, name=f"a.{n}", style="colwise", attention=True)
            for n, m in zip("qkv", layers, strict=True)
        ]
        row = linear(10, 7, bias=True, seed=9)
        sums = cut_to(comm, row, 1, name="a.o", style="rowwise")
        sums.module.in_features = 10
        install(comm, [*modules, sums])
        got = [layer(x) for layer in layers], row(x)
        plans = [call.plan for call in calls_of(comm).values()]
        return got, [plan.payload_bytes for plan in plans]

    for (gathered, summed), sizes in run_local(work, ranks=ranks):
        torch.testing.assert_close(gathered, whole)
        torch.testing.assert_close(summed, down)
        assert sizes and max(sizes) <= 300


def test_a_changed_input_is_computed_again():
    x = torch.randn(1, 2, 10)

    def work(comm):
        layers = [linear(10, 6, bias=False, seed=seed) for seed in range(2)]
        own = x.clone()
        install(comm, [cut_to(comm, m, 0, name=f"a.{n}", style="colwise_gather_output") for n, m in enumerate(layers)])
        layers[0](own)
        own += 1
        return layers[1](own), layers[0](own), layers[0](own)

    for second, *first in run_local(work, ranks=2):
        torch.testing.assert_close(second, linear(10, 6, bias=False, seed=1)(x + 1))
        for got in first:
            torch.testing.assert_close(got, linear(10, 6, bias=False, seed=0)(x + 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 13])
def test_row_parallel_layers_take_all_features_or_their_own(ranks):
    x = torch.randn(2, 3, 10)

    def work(comm):
        layer = linear(10, 7, bias=True, seed=3)
        split = cut_to(comm, layer, 1, name="a.o", style="rowwise")
        install(comm, [split])
        own = x[..., slice(*split.cuts["weight"].ranges[0])]
        if ranks in (2, 3):
            with pytest.raises(OperatorError, match="takes 10 features, or its own"):
                layer(x[..., :1])
        return layer(x), layer(own)

    for of_rank in run_local(work, ranks=ranks):
        for got in of_rank:
            torch.testing.assert_close(got, linear(10, 7, bias=True, seed=3)(x))


@pytest.mark.parametrize("ranks", [2, 5])
def test_embeddings_of_which_each_rank_has_some_rows(ranks):
    ids = torch.tensor([[0, 3, 2], [3, 1, 0]])

    def rows():
        return filled(nn.Embedding(4, 6), 4)

    def work(comm):
        table = rows()
        install(comm, [cut_to(comm, table, 0, name="e", style="embedding_rowwise")])
        return table(ids)

    for got in run_local(work, ranks=ranks):
        assert torch.equal(got, rows()(ids))


def test_gradients_are_refused():
    def work(comm):
        layer = linear(10, 7, bias=True, seed=3)
        install(comm, [cut_to(comm, layer, 1, name="a.o", style="rowwise")])
        with pytest.raises(OperatorError, match="is for inference"):
            layer(torch.randn(1, 10, requires_grad=True))

    run_local(work, ranks=2)
