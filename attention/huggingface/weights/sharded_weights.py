"""A model of which this rank holds its slices of the weights: cut in place, or read so from its files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attention.huggingface.agreement_of_inputs import agree_on_weights
from attention.huggingface.hf_layers import layer_windows
from attention.huggingface.weights.mapped_pages import release_pages
from attention.huggingface.weights.slices import Cut, SplitModule, split_modules
from attention.huggingface.weights.split_layers import install
from topocomm import Communicator, OperatorError

MARK = "topocomm_sharded_weights"
"""The attribute of a model that says how its weights are sharded."""
_LOCK = threading.Lock()


@dataclass(frozen=True)
class ShardedWeights:
    """How the weights of a model are sharded.

    Attributes:
        cut: Names of the parameters of which this rank holds a slice.
        heads: The query heads whose attention this rank's output projections take; None: they take columns of all.
        whole_bytes: Of all weights of the model.
        held_bytes: Of those that this rank holds.
    """

    comm: Communicator
    cut: frozenset[str]
    heads: slice | None
    whole_bytes: int
    held_bytes: int

    def __repr__(self) -> str:
        return f"<ShardedWeights: {self.held_bytes:,} of {self.whole_bytes:,} bytes, {len(self.cut)} parameters cut>"


def sharded_weights(model: nn.Module) -> ShardedWeights | None:
    """Return how a model's weights are sharded; None: this process holds them whole."""
    return vars(model).get(MARK)


def cut_weights(function: str, model: Any, comm: Communicator, order: str, weights: str) -> frozenset[str]:
    """Cut the weights if that is wanted, after the ranks have compared them; returns which are cut. Collective then.

    Raises:
        OperatorError: The model is not covered, cannot be split, or its slices are for other ranks.
        MismatchError: Ranks have other weights.
    """
    known = sharded_weights(model)
    if weights == "replicated" and known is None:
        return frozenset()
    if order == "canonical":
        raise OperatorError(f'{function}: order="canonical" needs weights="replicated": sums of slices have other bits')
    layer_windows(model.config.get_text_config(decoder=True))
    if known is None:
        agree_on_weights(function, comm, model, releases=True)
    return shard_weights(model, comm).cut


def shard_weights(model: Any, comm: Communicator) -> ShardedWeights:
    """Keep this rank's slices of a model's weights, and let its layers compute with those of all ranks; local.

    From then on all ranks call the model together, also where attention is not sharded; it cannot be undone. No
    parameter gets gradients.

    Raises:
        OperatorError: transformers has no plan for the model, or one that is not covered; nothing has changed then. Or
            the model's weights are sharded already, over other ranks.
    """
    with _LOCK:
        known = sharded_weights(model)
        if known is not None:
            if known.comm is not comm:
                raise OperatorError(
                    'weights="sharded": this model holds the slices of another rank or communicator; ranks on threads '
                    "need a model each, and after a change of ranks it must be loaded again"
                )
            return known
        modules = [*split_modules(model, comm.size, comm.rank)]
        whole_bytes = bytes_of(model)
        with torch.inference_mode(False), torch.no_grad():
            put_slices(model, modules, lambda weight, cut: cut.of(weight.data.__getitem__, weight.ndim))
        return finish(model, comm, modules, whole_bytes)


def finish(model: Any, comm: Communicator, modules: list[SplitModule], whole_bytes: int) -> ShardedWeights:
    """Let the layers of a model whose weights are cut compute with all ranks."""
    model.requires_grad_(False)
    install(comm, modules)
    names = frozenset(f"{split.name}.{name}" for split in modules for name in split.cuts)
    outputs = [split.heads for split in modules if split.attention and split.heads]
    heads = outputs[0] if outputs and all(x == outputs[0] for x in outputs) else None
    stored = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in model.parameters()}
    vars(model)["save_pretrained"] = _refuse_to_save
    done = vars(model)[MARK] = ShardedWeights(comm, names, heads, whole_bytes, sum(stored.values()))
    return done


def _refuse_to_save(*_: object, **__: object) -> None:
    raise OperatorError(
        "save_pretrained: each rank has its slices of this model's weights alone, so the folder would be of no use; "
        "save a model that was loaded whole"
    )


def bytes_of(model: nn.Module) -> int:
    """Return the bytes of a model's parameters, shared ones once."""
    return sum(x.numel() * x.element_size() for x in model.parameters())


def put_slices(model: nn.Module, modules: list[SplitModule], read: Callable[[nn.Parameter, Cut], torch.Tensor]) -> None:
    """Put this rank's slice in the place of each weight that is cut, once where modules share it.

    A module that shares it and needs it whole, as an embedding may, keeps it: the others then refer to a part of it.
    Small weights come first and each goes when its slice is there, so memory never holds more than the whole model.
    """
    cuts = {(split.module, name): cut for split in modules for name, cut in split.cuts.items()}
    groups = [places for _, places in owners_of(model)]  # without the weights, which would stay
    for places in sorted(groups, key=lambda places: _weight_at(places[0]).numel()):
        weight = _weight_at(places[0])
        wanted = {cuts.get(at) for at in places}
        if None in wanted:
            _leave_file(weight)
        shared = len(wanted) == 1
        for cut in wanted - {None}:
            assert cut is not None
            part = read(weight, cut) if shared else weight.data.narrow(cut.axis, cut.start, cut.length)
            own = nn.Parameter(part, requires_grad=False)
            for module, name in places:
                if cuts.get((module, name)) == cut:
                    module._parameters[name] = own
    for buffer in model.buffers():
        _leave_file(buffer)


def _weight_at(place: tuple[nn.Module, str]) -> nn.Parameter:
    weight = place[0]._parameters[place[1]]
    assert weight is not None
    return weight


def _leave_file(x: torch.Tensor) -> None:
    """Copy a tensor that stays out of the file in which it may lie: while one lies there, all that was read is held."""
    if x.device.type == "cpu" and type(x.data) is torch.Tensor and not x.is_inference():
        lying = x.data
        x.data = lying.clone()
        release_pages(lying)


def owners_of(model: nn.Module) -> list[tuple[nn.Parameter, list[tuple[nn.Module, str]]]]:
    """Return every parameter of a model once, with the modules that have it and its name there."""
    owners: dict[int, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                owners.setdefault(id(weight), (weight, []))[1].append((module, name))
    return [*owners.values()]
