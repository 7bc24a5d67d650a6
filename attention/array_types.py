"""Types of arguments and results that the functions of this package share; torch and mpi4py are named, not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Union

from numpy.typing import ArrayLike, NDArray

from attention.spec import Spec
from topocomm import Communicator

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from attention.cache.shards import ShardMap

AnyArray = TypeVar("AnyArray", "NDArray[Any]", "torch.Tensor")
"""NumPy arrays, or torch tensors: all arrays of a call are of one kind, and so is its result."""
Numbers: TypeAlias = Union[ArrayLike, "torch.Tensor", None]
"""Positions, masks, lengths or page numbers."""
Ranks: TypeAlias = Union[Communicator, "MPI.Comm", "ProcessGroup", "DeviceMesh"]
"""What says which ranks take part."""


class Masks(TypedDict, total=False):
    """Which query sees which key: keyword arguments of all sharded decode functions."""

    q_positions: Numbers
    kv_positions: Numbers
    kv_mask: Numbers
    kv_lengths: Numbers


class DecodeArguments(Masks, total=False):
    """Keyword arguments of `ring_decode` and `three_allreduce_decode`."""

    spec: Spec | None


class StepArguments(Masks, total=False):
    """Keyword arguments of `PreparedDecode.step`."""

    block_tables: Numbers


class TreeArguments(StepArguments, total=False):
    """Keyword arguments of `tree_decode`."""

    spec: Spec | None
    order: str
    shards: ShardMap | None
    result: str
    wire: str
    verify: bool | int


class SequenceArguments(TypedDict, total=False):
    """Keyword arguments of `ring_attention` and `ulysses_attention`."""

    spec: Spec | None
    positions: Numbers
    layout: str
