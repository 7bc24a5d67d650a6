"""What the modules of a split model compute on one rank, and the collectives between them.

A layer is a column-parallel product, then a row-parallel one, whose partial sums meet in one planned all-reduce
(tensor parallelism, Megatron-LM, arXiv:1909.08053). Attention's own projections are split as well, and their features
gathered, of all projections of one input at once (Helix parallelism, arXiv:2507.07120, computes them everywhere).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from attention.decode.communicators import calls_of, prepared_call, stream_order_of
from attention.decode.sharded import part_of
from attention.huggingface.weights.slices import EXPERTS, GATHERED, SplitModule
from topocomm import SUM, Communicator, OperatorError, PreparedCall
from topocomm.extend import skipped_by_dynamo

PIECE_BYTES = 4 << 20
"""What meets in one collective at most: of a prompt it would be as much as an activation of all tokens, and the buffers
of a collective stay for the next one like it."""


def install(comm: Communicator, modules: list[SplitModule]) -> None:
    """Let modules whose weights have been cut compute their part, and what they need of the others'."""
    by_parent: dict[str, list[SplitModule]] = {}
    for split in modules:
        forward: Any
        if split.style == GATHERED or (split.attention and split.style == "colwise"):
            by_parent.setdefault(split.name.rpartition(".")[0], []).append(split)
            continue
        if split.style == "colwise":
            continue  # its own features are what the row-parallel product takes
        if split.style in EXPERTS:
            cut = next(iter(split.cuts.values()))
            forward = split.module.forward if cut.axis else _OwnExperts(split.module, cut.start, cut.length)
            forward = _Summed(comm, forward)
        elif split.style == "embedding_rowwise":
            forward = _Embedding(comm, split.module)
        else:
            forward = _RowParallel(comm, split.module, slice(*split.cuts["weight"].ranges[0]))
        vars(split.module)["forward"] = forward
    for together in by_parent.values():
        group = _Gathered(comm, [split.module for split in together])
        for place, split in enumerate(together):
            vars(split.module)["forward"] = _Member(group, place)


class _Summed:
    """A module whose ranks' results add up to the whole."""

    def __init__(self, comm: Communicator, forward: Any) -> None:
        self._comm, self._forward = comm, forward

    @skipped_by_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return _sum(self._comm, self._forward(*args, **kwargs))


class _OwnExperts:
    """Packed experts of which this rank has some, whole: the sum of what those give, each with its weight."""

    def __init__(self, module: Any, first: int, count: int) -> None:
        self._forward, self._first, self._count = module.forward, first, count
        module.num_experts = count

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Of tokens [n, width], with the experts of each [n, k] and their weights."""
        out = torch.zeros_like(x)
        own = (experts >= self._first) & (experts < self._first + self._count)
        tokens, place = own.nonzero(as_tuple=True)
        if len(tokens):
            chosen = experts[tokens, place][:, None] - self._first
            out.index_add_(0, tokens, self._forward(x[tokens], chosen, weights[tokens, place][:, None]).to(x.dtype))
        return out


class _RowParallel:
    """A linear layer that has the weights of some input features."""

    def __init__(self, comm: Communicator, module: Any, own: slice) -> None:
        self._comm, self._module, self._own = comm, module, own
        self._whole = module.in_features

    @skipped_by_dynamo
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Take the own features of the input, or all: [..., features] to [..., out_features]."""
        module, width = self._module, x.shape[-1]
        if width != self._own.stop - self._own.start:
            if width != self._whole:
                raise OperatorError(
                    f'weights="sharded": a row-parallel layer takes {self._whole} features, or its own '
                    f"{self._own.stop - self._own.start}, got {width}: this model computes with them in between"
                )
            x = x[..., self._own]
        out = _sum(self._comm, functional.linear(x, module.weight))
        return out if module.bias is None else out.add_(module.bias)


class _Embedding:
    """An embedding that has the rows of some tokens."""

    def __init__(self, comm: Communicator, module: Any) -> None:
        self._comm, self._module = comm, module
        self._own = part_of(module.num_embeddings, comm.size, comm.rank)

    @skipped_by_dynamo
    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        here = (ids >= self._own.start) & (ids < self._own.stop)
        if self._own.stop == self._own.start:
            rows = self._module.weight.new_zeros(*ids.shape, self._module.embedding_dim)
        else:
            rows = functional.embedding((ids - self._own.start) * here, self._module.weight) * here[..., None]
        return _sum(self._comm, rows)


class _Gathered:
    """Linear layers of one input, each with the weights of some output features; all ranks get all features."""

    def __init__(self, comm: Communicator, modules: list[Any]) -> None:
        self._comm, self._modules = comm, modules
        self._whole = [module.out_features for module in modules]
        self._widths = [-(-count // comm.size) for count in self._whole]
        """Of every rank's part of a layer, in a row of what is gathered."""
        self._at = [sum(self._widths[:place]) for place in range(len(modules))]
        self._prepared: tuple[torch.Size, int, PreparedCall] | None = None
        self._stacked: tuple[Any, torch.Tensor, torch.Tensor | None] | None = None
        self._given: tuple[torch.Tensor, int] | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    @skipped_by_dynamo
    def run(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """Return the output of layer `place`; those of the others for the same input are kept until asked for."""
        version = 0 if x.is_inference() else x._version
        if self._given is None or self._given[0] is not x or self._given[1] != version or place not in self._waiting:
            self._waiting = dict(enumerate(self._all(x)))
            self._given = x, version
        found = self._waiting.pop(place)
        if not self._waiting:
            self._given = None
        return found

    def _all(self, x: torch.Tensor) -> list[torch.Tensor]:
        weight, bias = self._weights()
        rows = x.reshape(-1, x.shape[-1])
        pieces = _pieces(len(rows), self._comm.size * sum(self._widths) * x.element_size())
        if len(pieces) == 1:
            whole = self._of_rows(rows, weight, bias)
        else:  # only one piece is there more than once
            whole = [x.new_empty(len(rows), count) for count in self._whole]
            for piece in pieces:
                for out, part in zip(whole, self._of_rows(rows[piece], weight, bias), strict=True):
                    out[piece] = part
        return [out.view(*x.shape[:-1], out.shape[1]) for out in whole]

    def _of_rows(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
        """Of x [rows, features] the output [rows, out_features] of each layer."""
        own = functional.linear(x, weight, bias)
        if own.shape[-1] < self._widths[0]:
            own = functional.pad(own, (0, self._widths[0] - own.shape[-1]))
        _refuse_gradients(own)
        parts = {
            str(at): own[:, at : at + width].contiguous() for at, width in zip(self._at, self._widths, strict=True)
        }
        gather = self._gather(parts)
        stream_order_of(self._comm).acquire(own.device, gather)
        gathered = gather(parts)
        return [self._joined(part, count) for part, count in zip(gathered.values(), self._whole, strict=True)]

    def _gather(self, parts: dict[str, torch.Tensor]) -> PreparedCall:
        """The prepared all-gather of such parts, looked up again where the shape is another, or one was freed."""
        kind, dropped = next(iter(parts.values())).shape, calls_of(self._comm).dropped
        if self._prepared is None or self._prepared[:2] != (kind, dropped):
            call = prepared_call(self._comm, "allgather", parts)
            self._prepared = kind, calls_of(self._comm).dropped, call
        return self._prepared[2]

    def _joined(self, part: torch.Tensor, count: int) -> torch.Tensor:
        """Join the features of one layer, [ranks x rows, width] to [rows, count]."""
        ranks, (total, width) = self._comm.size, part.shape
        whole = part.view(ranks, total // ranks, width)
        if count % ranks == 0:
            return whole.movedim(0, 1).reshape(total // ranks, count)
        owned = [part_of(count, ranks, rank) for rank in range(ranks)]
        return torch.cat([whole[rank, :, : own.stop - own.start] for rank, own in enumerate(owned)], -1)

    def _weights(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All layers' own weights as one, each with zeros up to the largest part; made once, for one product."""
        tensors = [(module.weight, module.bias) for module in self._modules]
        if len(tensors) == 1:
            return tensors[0]  # it may be the embedding as well
        key = [(w.data_ptr(), w.device) for w, _ in tensors]
        if self._stacked is None or self._stacked[0] != key:
            self._stack(tensors)
        assert self._stacked is not None
        return self._stacked[1:]

    def _stack(self, tensors: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        like = tensors[0][0]
        weight = like.new_zeros(sum(self._widths), like.shape[1])
        bias = like.new_zeros(len(weight)) if any(b is not None for _, b in tensors) else None
        for module, (w, _), part in zip(self._modules, tensors, torch.split(weight, self._widths), strict=True):
            part[: len(w)] = w
            module.weight = nn.Parameter(part[: len(w)], requires_grad=False)  # once in memory
        if bias is not None:
            for (_, b), part in zip(tensors, torch.split(bias, self._widths), strict=True):
                if b is not None:
                    part[: len(b)] = b
        self._stacked = [(module.weight.data_ptr(), module.weight.device) for module in self._modules], weight, bias


class _Member:
    """The forward pass of one layer of a `_Gathered`."""

    def __init__(self, group: _Gathered, place: int) -> None:
        self._group, self._place = group, place

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.run(self._place, x)


def _sum(comm: Communicator, own: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks, in the memory of this rank's part where that is contiguous."""
    _refuse_gradients(own)
    own = own.contiguous()
    if own.numel():
        rows = own.view(-1, own.shape[-1])
        for piece in _pieces(len(rows), rows.shape[1] * own.element_size()):
            comm.allreduce(rows[piece], SUM, out=rows[piece])
    return own


def _pieces(count: int, row_bytes: int) -> list[slice]:
    """Ranges of `count` rows, the same on all ranks, of up to `PIECE_BYTES` each; one at least."""
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    return [slice(start, start + step) for start in range(0, max(count, 1), step)]


def _refuse_gradients(x: torch.Tensor) -> None:
    if x.requires_grad:
        raise OperatorError('weights="sharded" is for inference: call the model under torch.no_grad()')
