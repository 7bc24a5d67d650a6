"""The collectives of one group on tensors of host memory, in place where they lie in one piece; each blocks.

They run on plans of the communicator, from calls kept by signature. Arguments are checked first: where they are wrong
on one rank the others are told, who may be in the call already.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

import torch

from topocomm.errors import OperatorError
from topocomm.execute.calls.call_cache import CallCache
from topocomm.execute.calls.ranges import gather_rows
from topocomm.execute.calls.row_counts import ASKED, SAME, RowCounts
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import AGREEMENT_TAG
from topocomm.operators.builtin import SUM
from topocomm.operators.tensors import as_array
from topocomm.torch.reduce_ops import Reduction, reduction_of
from topocomm.torch.values import (
    flat,
    flat_bytes,
    flat_target,
    join,
    put,
    put_all,
    same_dtype,
    same_items,
)

Tensors = Sequence[torch.Tensor]


class _Checking:
    """Tells the other ranks of arguments that are wrong here, and says whose they are."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OperatorError):
            problem = OperatorError(f"rank {self._session.rank}: {error}")
            self._session.refuse(AGREEMENT_TAG, problem)
            raise problem from None


class GroupCalls:
    """What one rank of a group calls. Methods have torch's names and meaning; `root` is a rank of the group."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.rank, self.size = session.rank, session.size
        self._checking = _Checking(session)
        self._calls = CallCache(session)
        self.run = self._calls.run
        self._rows = RowCounts(self._calls, session)

    def close(self) -> None:
        """Free the kept calls."""
        self._calls.close()

    def allreduce(self, tensor: torch.Tensor, op: Any) -> None:
        """Reduce in place."""
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo:
            self._allreduce_sparse(tensor, op)
            return
        with self._checking:
            value = flat(tensor, "all_reduce")
            reduction = reduction_of(op, value.dtype)
        if not value.numel():
            return
        if reduction.factor is not None:
            reduction.scaled(value, in_place=True)
        self._run(reduction.operator, value, value)
        if reduction.averages:
            reduction.finish(value, self.size)
        put(tensor, value)

    def allreduce_coalesced(self, tensors: Tensors, op: Any) -> None:
        """Reduce all tensors in place, in one call."""
        if len(tensors) == 1:
            self.allreduce(tensors[0], op)
            return
        with self._checking:
            same_dtype(tensors, "all_reduce_coalesced")
            value = join(tensors, "all_reduce_coalesced")
        self.allreduce(value, op)
        put_all(tensors, value)

    def reduce(self, tensor: torch.Tensor, op: Any, root: int) -> None:
        """Reduce to the root, in place; elsewhere the tensor stays as it is."""
        with self._checking:
            self._check_root(root, "reduce")
            value = flat(tensor, "reduce")
            reduction = reduction_of(op, value.dtype)
        if not value.numel():
            return
        is_root = self.rank == root
        value = reduction.scaled(value, in_place=is_root)
        self._run(("reduce", reduction.operator, root), value, value if is_root else None)
        if is_root:
            reduction.finish(value, self.size)
            put(tensor, value)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Write the root's tensor to all."""
        with self._checking:
            self._check_root(root, "broadcast")
            value = flat_bytes(tensor, "broadcast")
        if value.numel():
            self._run(("broadcast", None, root), value, value)
            put(tensor, value)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Write all ranks' tensors, of equal size, to `output`, one after the other."""
        what = "all_gather_into_tensor"
        with self._checking:
            same_dtype((output, tensor), what)
            value, result = flat_bytes(tensor, what), flat_target(output, what)
            same_items(result.numel(), value.numel() * self.size, what)
        if value.numel():
            self._run(("allgather", None, 0, (value.numel(),) * self.size), value, result)
            put(output, result)

    def allgather(self, outputs: Tensors, tensor: torch.Tensor) -> None:
        """Write rank r's tensor to `outputs[r]`; sizes may differ, and are known to all ranks by their outputs."""
        what = "all_gather"
        with self._checking:
            self._check_list(outputs, what)
            same_dtype((*outputs, tensor), what)
            value = flat_bytes(tensor, what)
            counts = tuple(output.numel() * tensor.element_size() // value.element_size() for output in outputs)
            same_items(counts[self.rank], value.numel(), f"{what}, output {self.rank}")
        if sum(counts):
            result = torch.empty(sum(counts), dtype=value.dtype)
            self._run(("allgather", None, 0, counts), value, result)
            put_all(outputs, result)

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int) -> None:
        """Write rank r's tensor to `outputs[r]` on the root; all tensors have the same size."""
        is_root = self.rank == root
        with self._checking:
            self._check_root(root, "gather")
            value = flat_bytes(tensor, "gather")
            if is_root:
                self._check_list(outputs, "gather")
                same_dtype((*outputs, tensor), "gather")
                for rank, output in enumerate(outputs):
                    same_items(output.numel(), tensor.numel(), f"gather, output {rank}")
            elif outputs:
                raise OperatorError(f"gather: expected outputs on root {root} only, got {len(outputs)}")
        if value.numel():
            result = torch.empty(value.numel() * self.size, dtype=value.dtype) if is_root else None
            self._run(("gather", None, root, (value.numel(),) * self.size), value, result)
            if result is not None:
                put_all(outputs, result)

    def scatter(self, output: torch.Tensor, tensors: Tensors, root: int) -> None:
        """Write the root's `tensors[r]` to rank r's output; all have the same size."""
        with self._checking:
            self._check_root(root, "scatter")
            result = flat_target(output, "scatter")
            if self.rank == root:
                self._check_list(tensors, "scatter")
                same_dtype((*tensors, output), "scatter")
                for rank, tensor in enumerate(tensors):
                    same_items(output.numel(), tensor.numel(), f"scatter, input {rank}")
                value = join(tensors, "scatter", moved=True)
            elif tensors:
                raise OperatorError(f"scatter: expected tensors on root {root} only, got {len(tensors)}")
            else:  # never read: it says the shape
                value = torch.empty(result.numel() * self.size, dtype=result.dtype)
        if result.numel():
            self._run(("scatter", None, root, (result.numel(),) * self.size), value, result)
            put(output, result)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> None:
        """Write this rank's part of the reduction of `tensor`, in equal parts."""
        what = "reduce_scatter_tensor"
        with self._checking:
            same_dtype((output, tensor), what)
            value = flat(tensor, what)
            same_items(output.numel() * self.size, value.numel(), f"{what} on {self.size} ranks, in all")
        self._reduce_scatter(output, value, op, (output.numel(),) * self.size, what)

    def reduce_scatter(self, output: torch.Tensor, tensors: Tensors, op: Any) -> None:
        """Write the reduction of all ranks' `tensors[rank]`; sizes may differ, all ranks have the same list of them."""
        what = "reduce_scatter"
        with self._checking:
            self._check_list(tensors, what)
            same_dtype((*tensors, output), what)
            value = join(tensors, what)
            same_items(output.numel(), tensors[self.rank].numel(), f"{what}, input {self.rank}")
        self._reduce_scatter(output, value, op, tuple(tensor.numel() for tensor in tensors), what)

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_counts: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Send `counts[r]` entries of axis 0 to rank r, of which `output_counts[r]` come; empty: equal parts."""
        what = "all_to_all_single"
        with self._checking:
            same_dtype((output, tensor), what)
            value, result = flat_bytes(tensor, what), flat_target(output, what)
            sent = self._items(tensor, value, counts, f"{what}, input")
            got = self._items(output, result, output_counts, f"{what}, output")
        if counts or output_counts:
            self._all_to_all(result, value, got, sent, what)
        elif value.numel():
            self._run(("alltoall", None, 0, None), value, result)
        put(output, result)

    def alltoall(self, outputs: Tensors, tensors: Tensors) -> None:
        """Send `tensors[r]` to rank r, whose tensor comes to `outputs[r]`."""
        what = "all_to_all"
        with self._checking:
            self._check_list(outputs, what)
            self._check_list(tensors, what)
            same_dtype((*outputs, *tensors), what)
            value = join(tensors, what, moved=True)
            width = tensors[0].element_size() // value.element_size()
            sent, got = ([tensor.numel() * width for tensor in some] for some in (tensors, outputs))
            result = torch.empty(sum(got), dtype=value.dtype)
        self._all_to_all(result, value, got, sent, what)
        put_all(outputs, result)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._calls.run(ASKED, SAME, None)

    def _run(self, which: Hashable, value: torch.Tensor, result: torch.Tensor | None) -> None:
        """Make a call on tensors, given as arrays: ranks with plain tensors and with others have the same call."""
        items = as_array(value)
        self._calls.run(which, items, items if result is value else None if result is None else as_array(result))

    def _allreduce_sparse(self, tensor: torch.Tensor, op: Any) -> None:
        """Sum tensors of which ranks hold different items: all gather all items, and add them up alike."""
        with self._checking:
            if reduction_of(op, tensor.dtype) != Reduction(SUM):
                raise OperatorError(f"all_reduce of sparse tensors: expected SUM, got {op}; pass x.to_dense()")
        own = tensor.detach().coalesce()
        rows = gather_rows(self._calls, self._session, own.values())
        parts = []
        for items in (own.indices().t().contiguous(), own.values()):
            joined = torch.empty((sum(rows), *items.shape[1:]), dtype=items.dtype)
            if joined.numel():
                self._run(("allgather", None, 0, rows), items.contiguous(), joined)
            parts.append(joined)
        total = torch.sparse_coo_tensor(parts[0].t(), parts[1], tensor.shape, check_invariants=False)
        with torch.no_grad():
            tensor.copy_(total.coalesce())

    def _reduce_scatter(
        self, output: torch.Tensor, value: torch.Tensor, op: Any, counts: tuple[int, ...], what: str
    ) -> None:
        with self._checking:
            reduction = reduction_of(op, value.dtype)
            result = flat_target(output, what)
        if not value.numel():
            return
        value = reduction.scaled(value, in_place=False)
        self._run(("reduce_scatter", reduction.operator, 0, counts), value, result)
        reduction.finish(result, self.size)
        put(output, result)

    def _all_to_all(
        self, result: torch.Tensor, value: torch.Tensor, got: Sequence[int], sent: Sequence[int], what: str
    ) -> None:
        """Exchange parts whose sizes ranks tell each other first."""
        pairs = self._rows.of_alltoall(value, sent)
        assert pairs is not None, "rows are given"
        with self._checking:
            comes = pairs[self.rank :: self.size]
            if list(comes) != list(got):
                raise OperatorError(f"{what}: expected outputs of {list(comes)} items by rank, got {list(got)}")
        if sum(pairs):
            self._run(("alltoall", None, 0, pairs), value, result)

    def _items(self, tensor: torch.Tensor, flat: torch.Tensor, counts: Sequence[int], what: str) -> list[int]:
        """Return the flat items for each rank of a tensor cut along axis 0."""
        length = tensor.shape[0] if tensor.ndim else 1
        if not counts:
            if length % self.size:
                raise OperatorError(f"{what}: axis 0 of {length} entries cannot be cut in {self.size} equal parts")
            return [flat.numel() // self.size] * self.size
        if len(counts) != self.size or min(counts) < 0 or sum(counts) != length:
            raise OperatorError(f"{what}: expected {self.size} counts that add up to {length}, got {list(counts)}")
        width = prod(tensor.shape[1:]) * tensor.element_size() // flat.element_size()
        return [count * width for count in counts]

    def _check_root(self, root: int, what: str) -> None:
        if not 0 <= root < self.size:
            raise OperatorError(f"{what}: root {root}: expected a rank of the group, 0 to {self.size - 1}")

    def _check_list(self, tensors: Tensors, what: str) -> None:
        if len(tensors) != self.size:
            raise OperatorError(f"{what}: expected {self.size} tensors, one for each rank, got {len(tensors)}")
