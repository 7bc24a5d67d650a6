"""Which slice of each weight a rank holds, read from transformers' own plan for tensor parallelism.

A plan gives matrices of some modules a style (`base_model_tp_plan` of a configuration, `_tp_plan` of a model). Feature
i of n is on the rank that has it among as equal ranges as can be, so widths need not divide by the number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from attention.decode.sharded import part_of
from attention.huggingface.weights.mapped_pages import release_pages
from topocomm import OperatorError

GATHERED = "colwise_gather_output"
SPLIT_INPUT = "rowwise_split_input"
EXPERTS = frozenset({"moe_tp_experts", "ep_dispatch_experts"})
OF_EXPERTS = "grouped_gemm"
"""The style of packed experts of which each rank holds some, whole."""
WHOLE = frozenset({"replicated_with_grad_allreduce", "replicate", "sequence_parallel", "mla_kv_a_proj", "ep_router"})
"""Styles of what every rank holds whole."""
LEAST_FEATURES = 8
"""Features of experts are cut in steps of so many: torch's grouped products want rows of a multiple of 16 bytes."""
LINEAR = frozenset({"colwise", "rowwise", SPLIT_INPUT, GATHERED})
WITHOUT = 'use weights="replicated", where every rank holds the whole model'
"""The remedy where a model cannot be split."""


@dataclass(frozen=True)
class Cut:
    """What one rank holds of a weight.

    Attributes:
        ranges: What is kept of it, (start, stop) one after another.
    """

    axis: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        """Where the first range begins."""
        return self.ranges[0][0]

    @property
    def length(self) -> int:
        """How much is kept, over all ranges."""
        return sum(stop - start for start, stop in self.ranges)

    def of(self, read: Callable[[tuple[slice, ...]], torch.Tensor], ndim: int) -> torch.Tensor:
        """Return the slice, contiguous and apart from the whole, which `read` indexes; pages of a file go."""
        before = [slice(None)] * (self.axis % ndim)
        parts = [read((*before, slice(*part))) for part in self.ranges]
        if len(parts) == 1:
            own = parts[0].clone(memory_format=torch.contiguous_format)
        else:
            own = torch.cat(parts, self.axis % ndim)
        for part in parts:
            release_pages(part)
        return own


@dataclass(frozen=True)
class SplitModule:
    """A module whose weights are cut.

    Attributes:
        name: In the model.
        style: Of transformers' plan.
        attention: Whether it is a projection of an attention layer, whose queries, keys and values all ranks need.
        cuts: By the name of a weight, what is held of it; all of those that are not named.
        heads: Of an attention's output projection, the query heads that it takes here; None: any columns.
    """

    name: str
    style: str
    module: nn.Module
    attention: bool
    cuts: dict[str, Cut]
    heads: slice | None = None


def split_modules(model: nn.Module, ranks: int, rank: int) -> Iterator[SplitModule]:
    """Give the modules of a model that are cut, and how; the weights may be on the meta device.

    Raises:
        OperatorError: The model has no such plan, or one that is not covered here.
    """
    plan = _plan_of(model)
    heads = int(model.config.get_text_config(decoder=True).num_attention_heads)  # type: ignore[union-attr,operator]
    for name, module in model.named_modules():
        generic = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        style = plan.get(generic)
        if style is None or style in WHOLE:
            continue
        if style in EXPERTS:
            of_weights = {x: plan.get(f"{generic}.{x}", style) for x, _ in module.named_parameters(recurse=False)}
            yield SplitModule(name, style, module, False, _cuts_of_experts(name, module, of_weights, ranks, rank))
        elif style == "embedding_rowwise":
            if type(module).forward is nn.Embedding.forward:
                yield SplitModule(name, style, module, False, {"weight": _cut(module.weight, 0, 1, ranks, rank)})
        elif style in LINEAR:
            parent = model.get_submodule(name.rpartition(".")[0])
            attention = hasattr(parent, "layer_idx") and (hasattr(parent, "scaling") or hasattr(parent, "is_causal"))
            if attention and name.endswith(".kv_b_proj"):
                continue  # of latent attention, which takes the matrix itself
            units = heads if attention and ranks <= heads and _gives_heads(parent, module) else None
            yield _linear(name, style, module, attention, (ranks, rank, units))
        else:
            raise OperatorError(
                f'weights="sharded": {name} is to be split as {style!r}, which is not covered; {WITHOUT}'
            )


def _plan_of(model: nn.Module) -> dict[str, str]:
    """The plan for tensor parallelism; that for expert parallelism where the layers have no other."""
    plans: list[dict[str, str]] = [getattr(model, name, None) or {} for name in ("_tp_plan", "_ep_plan")]
    plan = plans[0] if any(".*" in name for name in plans[0]) else {**plans[0], **plans[1]}
    if not any(".*" in name for name in plan):
        raise OperatorError(
            f'weights="sharded": {type(model).__name__} names no plan by which its layers are split '
            f"(base_model_tp_plan of its configuration); {WITHOUT}"
        )
    return plan


def _gives_heads(attention: nn.Module, output: Any) -> bool:
    """Whether nothing but attention itself lies between queries and output projection, so that heads stay apart."""
    layers = {name: x for name, x in attention.named_children() if next(x.parameters(), None) is not None}
    before = [x for x in layers.values() if isinstance(x, nn.Linear) and x is not output]
    others = [name for name, x in layers.items() if not isinstance(x, nn.Linear) and name[:2] not in ("q_", "k_", "v_")]
    return not others and 1 <= len(before) <= 3 and before[0].out_features == output.in_features


def _linear(name: str, style: str, module: Any, attention: bool, place: tuple[int, int, int | None]) -> SplitModule:
    ranks, rank, heads = place
    if type(module).forward is not nn.Linear.forward or type(module.weight.data) is not torch.Tensor:
        raise OperatorError(
            f'weights="sharded": {name} is a {type(module).__name__}, whose weights cannot be split (quantized ones '
            f"cannot); {WITHOUT}"
        )
    weight, own = module.weight, None
    if style in ("colwise", GATHERED):
        cuts = {x: _cut(p, 0, 1, ranks, rank) for x, p in module.named_parameters(recurse=False)}
    else:
        unit = weight.shape[1] // heads if heads and style == "rowwise" and weight.shape[1] % heads == 0 else 1
        part = part_of(weight.shape[1] // unit, ranks, rank)
        own = part if unit > 1 else None
        cuts = {"weight": Cut(1, ((part.start * unit, part.stop * unit),))}
    return SplitModule(name, style, module, attention, cuts, own)


def _cuts_of_experts(name: str, module: nn.Module, styles: dict[str, str], ranks: int, rank: int) -> dict[str, Cut]:
    """How packed experts [experts, out, in] are cut: by the features between the matrices of each, or one by one."""
    weights = dict(module.named_parameters(recurse=False))
    if set(styles.values()) == {OF_EXPERTS}:
        return {x: _cut(p, 0, 1, ranks, rank) for x, p in weights.items()}
    axes = {"packed_colwise": (-2, 2), "colwise": (-2, 1), "rowwise": (-1, 1)}
    for weight, style in styles.items():
        if style not in axes or weights[weight].ndim != 3 or "rowwise" not in styles.values():
            raise OperatorError(
                f'weights="sharded": experts with {name}.{weight} of shape {list(weights[weight].shape)}, to be split '
                f"as {style!r}, are not covered; {WITHOUT}"
            )
    cuts = {x: _cut(p, *axes[styles[x]], ranks, rank, LEAST_FEATURES) for x, p in weights.items()}
    if any(p.shape[axes[styles[x]][0]] // axes[styles[x]][1] // LEAST_FEATURES < ranks for x, p in weights.items()):
        raise OperatorError(
            f'weights="sharded": {ranks} ranks are more than the features of {name}, of which each needs '
            f"{LEAST_FEATURES}; take fewer ranks, or {WITHOUT}"
        )
    return cuts


def _cut(weight: torch.Tensor, axis: int, packed: int, ranks: int, rank: int, unit: int = 1) -> Cut:
    """Cut an axis on which `packed` matrices lie one after another, each alike, between multiples of `unit`."""
    width = weight.shape[axis] // packed
    part = part_of(width // unit, ranks, rank)
    start, stop = part.start * unit, width if rank == ranks - 1 else part.stop * unit
    return Cut(axis, tuple((i * width + start, i * width + stop) for i in range(packed)))


def groups_of_heads(heads: slice, group: int) -> list[tuple[slice, slice]]:
    """Return ranges of query heads with the KV heads that they read, in each of which all KV heads have as many.

    `group` is the number of query heads that share a KV head.
    """
    first, stop = heads.start, heads.stop
    whole = (min(-(-first // group) * group, stop), max(stop // group * group, first))
    edges = sorted({first, *whole, stop})
    return [(slice(a, b), slice(a // group, -(-b // group))) for a, b in pairwise(edges)]
