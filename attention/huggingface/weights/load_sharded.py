"""Reading a rank's own slices of a model's weights from its safetensors files, and nothing else of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import torch
from torch import nn

from attention.huggingface.weights.mapped_pages import release_pages
from attention.huggingface.weights.sharded_weights import bytes_of, finish, owners_of, put_slices
from attention.huggingface.weights.slices import WITHOUT, Cut, SplitModule, split_modules
from attention.jobs.model_folders import missing_model
from topocomm import Communicator, MissingExtraError, OperatorError, TopocommError

try:
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel  # type: ignore[attr-defined]
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        Concatenate,
        MergeModulelist,
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )
except ImportError as error:
    raise MissingExtraError("attention.huggingface.weights", "transformers", "demo") from error

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MERGES = ([MergeModulelist], [MergeModulelist, Concatenate])
"""Conversions that are done slice by slice: matrices of experts become one tensor, then lie one after another."""

_BUILDING = Lock()
"""A model without weights is built by one thread at a time: what keeps them away is put into torch's own class."""


class CheckpointError(TopocommError, ValueError):
    """Files of a model lack weights, or have others than the model wants."""


def load_sharded(path: str | Path, comm: Communicator, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return the model of a directory with this rank's slices of the weights, for inference on the CPU; local.

    A rank reads its own slices, embeddings that are not split, and norms. Give the model to `enable` or
    `shard_generation` over the same ranks.

    Args:
        path: A directory with config.json and safetensors files.
        comm: The ranks, of which each loads its own.
        dtype: Of the weights.

    Raises:
        OperatorError: transformers has no plan by which to split the model, or one that is not covered.
        CheckpointError: The folder is missing, or a file or weight in it, or has another shape.
    """
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        model, modules, checkpoint = _opened(Path(path), (comm.size, comm.rank), dtype, stack)
        whole_bytes = bytes_of(model)
        cut = {(split.module, name) for split in modules for name in split.cuts}
        for weight, places in owners_of(model):
            if not cut.issuperset(places):
                whole = nn.Parameter(checkpoint.read(weight, None), requires_grad=False)
                for module, name in places:
                    module._parameters[name] = whole
        put_slices(model, modules, checkpoint.read)
        checkpoint.fill_buffers(model)
    if (Path(path) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    finish(model, comm, modules, whole_bytes)
    whole_model: PreTrainedModel = model.eval()
    return whole_model


def check_sharded(path: str | Path, ranks: int) -> None:
    """Raise what `load_sharded` would raise over so many ranks, before any weight is read."""
    with ExitStack() as stack:
        _opened(Path(path), (ranks, 0), torch.float32, stack)


def _opened(
    path: Path, place: tuple[int, int], dtype: torch.dtype, stack: ExitStack
) -> tuple[Any, list[SplitModule], _Checkpoint]:
    """The model without weights, how it is cut for (ranks, rank), and its files, open until the stack closes."""
    if (missing := missing_model(path)) is not None:
        raise CheckpointError(f"load_sharded: {missing}")
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        raise OperatorError(f'{path}: weights="sharded" does not cover quantized weights; {WITHOUT}')
    with _without_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.tie_weights()
    return model, [*split_modules(model, *place)], _Checkpoint(path, model, stack)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Have modules that are made keep their parameters on the meta device, and their buffers where they are."""
    with _BUILDING:
        register, builder = nn.Module.register_parameter, get_ident()

        def registered(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
            if weight is not None and not weight.is_meta and get_ident() == builder:
                weight = nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
            register(module, name, weight)

        nn.Module.register_parameter = registered  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[method-assign]


class _Checkpoint:
    """The safetensors files of a directory, by the names that weights have in the model."""

    def __init__(self, path: Path, model: Any, stack: ExitStack) -> None:
        """Open the files until the stack closes.

        Raises:
            CheckpointError: One is missing, or cannot be read, or none has a weight of the model.
            OperatorError: A weight is converted in a way that is not covered.
        """
        self._path = path
        self._files: dict[str, Any] = {}
        self._sources: dict[str, dict[str, list[str]]] = {}
        """By a weight's name, the keys that make it up, in order, by the pattern of transformers that takes them."""
        self._names: dict[int, list[str]] = {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(weight), []).append(name)
        transforms = get_model_conversion_mapping(model)
        renamings = [x for x in transforms if isinstance(x, WeightRenaming)]
        converters = [x for x in transforms if isinstance(x, WeightConverter)]
        patterns = {pattern: x for x in converters for pattern in x.source_patterns}
        known = model.state_dict()
        for file in self._file_names():
            try:
                opened = stack.enter_context(safe_open(path / file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path / file}: cannot be read: {error}") from error
            for key in opened.keys():  # noqa: SIM118 not a dictionary
                self._files[key] = opened
                name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
                self._sources.setdefault(name, {}).setdefault(pattern or "", []).append(key)
        for name, parts in self._sources.items():
            converter = patterns.get(next(iter(parts)))
            if converter is not None:
                if [type(x) for x in converter.operations] not in MERGES:
                    raise OperatorError(
                        f"{path}: {name} is converted when it is read ({converter.operations}), which "
                        f'weights="sharded" does not cover; {WITHOUT}'
                    )
                self._sources[name] = {x: sorted(parts.get(x, ()), key=_numbers) for x in converter.source_patterns}
        lacking = [names[0] for names in self._names.values() if not any(name in self._sources for name in names)]
        if lacking:
            raise CheckpointError(
                f"{path}: the files lack {len(lacking)} weights that the model wants, {lacking[0]} among them"
            )

    def _file_names(self) -> list[str]:
        index = self._path / INDEX
        if index.is_file():
            return sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [SINGLE]

    def read(self, weight: torch.Tensor, cut: Cut | None) -> torch.Tensor:
        """Return a weight of the model, or what is held of it.

        Raises:
            CheckpointError: The files have it in another shape.
        """
        name = next(x for x in self._names[id(weight)] if x in self._sources)
        parts = self._sources[name]
        if "" in parts:
            return _in_dtype(self._slice(parts[""][0], weight.shape, cut), weight.dtype)
        merged = []
        for place, keys in enumerate(parts.values()):
            shape = (weight.shape[1] // len(parts), *weight.shape[2:])
            if len(keys) != len(weight):
                raise CheckpointError(f"{self._path}: the files have {len(keys)} matrices of {name}, not {len(weight)}")
            own = cut
            if cut is not None and cut.axis == 0:
                keys, own = keys[cut.start : cut.start + cut.length], None
            elif cut is not None:
                own = _of_one_matrix(cut, place, shape)
            merged.append([self._slice(key, torch.Size(shape), own) for key in keys])
        if not merged[0]:
            return weight.new_empty((0, *weight.shape[1:]), device="cpu")
        whole = torch.cat([torch.stack(matrices) for matrices in merged], 1).to(weight.dtype)
        for matrix in (x for matrices in merged for x in matrices):
            release_pages(matrix)
        return whole

    def _slice(self, key: str, shape: torch.Size, cut: Cut | None) -> torch.Tensor:
        stored = self._files[key].get_slice(key)
        if stored.get_shape() != [*shape]:
            raise CheckpointError(f"{self._path}: {key} has the shape {stored.get_shape()}, not {[*shape]}")
        if cut is None:
            whole: torch.Tensor = stored[:] if shape else self._files[key].get_tensor(key)
            return whole
        if cut.length == 0:
            kept = [*shape]
            kept[cut.axis] = 0
            return torch.empty(kept)
        return cut.of(stored.__getitem__, len(shape))

    def fill_buffers(self, model: Any) -> None:
        """Fill the buffers of a model that its files have."""
        for name, buffer in model.named_buffers():
            if name in self._sources:
                buffer.copy_(self._slice(self._sources[name][""][0], buffer.shape, None))


def _in_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same in a dtype; where that is another, the file's pages are given back."""
    cast = x.to(dtype)
    if cast is not x:
        release_pages(x)
    return cast


def _of_one_matrix(cut: Cut, place: int, shape: tuple[int, ...]) -> Cut:
    """What is held of one of the matrices that lie one after another along the axis that is cut."""
    start, stop = cut.ranges[place] if len(cut.ranges) > 1 else cut.ranges[0]
    before = place * shape[cut.axis] if len(cut.ranges) > 1 else 0
    return Cut(cut.axis, ((start - before, stop - before),))


def _numbers(key: str) -> list[int]:
    """The numbers in a key, of layers and experts, by which keys are in order."""
    return [int(x) for x in re.findall(r"\d+", key)]
