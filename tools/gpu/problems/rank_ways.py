"""The ways in which ranks merge partials that bench_ranks.py compares, each a call on tensors of the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from card import Card, Run
from nccl_files.raw_nccl import Library

from attention import LOGSUMEXP, Partial
from topocomm import Communicator, Plan, PreparedCall, bind_device_folds


class Way(NamedTuple):
    """One way.

    Attributes:
        run: The call.
        result: Its result after one.
        plan: By which plan it has the bits of ranks in host memory; None: it has bits of its own.
        merges: Whether its result is the merge.
    """

    run: Run
    result: Callable[[], Partial]
    plan: Plan | None = None
    merges: bool = True


LANES = {"PeerEngine": "one kernel"}
WIRES = {"NcclDeviceTransport": "NCCL by CuPy", "TorchDeviceTransport": "NCCL by torch"}


def ours(comm: Communicator, x: Partial) -> dict[str, Way]:
    """Prepared calls of the public interface, named by the way that they found.

    Where one kernel runs the whole call there is also a call without it.
    """
    name, way = _prepared(comm, x)
    found = {name: way}
    peer = getattr(comm.session.device_path, "peer", None)
    if peer is not None:
        comm.session.device_path.peer = None  # type: ignore[union-attr]
        try:
            name, way = _prepared(comm, x)
        finally:
            comm.session.device_path.peer = peer  # type: ignore[union-attr]
        found.setdefault(name, way)
    return found


def _prepared(comm: Communicator, x: Partial) -> tuple[str, Way]:
    like = {"out": x.out, "lse": x.lse}
    out = {name: torch.empty_like(part) for name, part in like.items()}
    call = comm.prepare("allreduce", like=like, operator=LOGSUMEXP)
    call(like, out=out)
    way = Way(lambda: call(like, out=out), lambda: Partial(**out), call.plan)
    return f"topocomm: {way_words(comm, call)}", way


def way_words(comm: Communicator, call: PreparedCall) -> str:
    """Return a call's device path and plan."""
    way = comm.session.device_path
    engine = type(call.engines[0]).__name__
    if way is None:
        words = "host memory"
    elif engine in LANES:
        words = LANES[engine]
    elif way.transport is None:
        words = "pinned host memory"
    else:
        words = WIRES.get(type(way.transport).__name__, type(way.transport).__name__)
    return f"{words}, {call.plan.algorithm}"


class Silent:
    """A library whose calls do nothing: with it a way loads its kernels while no rank waits on the card for another.

    The first launch of a kernel loads it, which may wait for all that runs there.
    """

    def all_reduce(self, x: torch.Tensor, op: str) -> None:
        """Nothing."""

    def all_gather(self, x: torch.Tensor, into: torch.Tensor) -> None:
        """Nothing."""


def by_nccl(comm: Communicator, card: Card, library: Library, x: Partial) -> dict[str, Way]:
    """The ways without us; all ranks call it."""
    made = {
        "all-gather + merge": gather_and_merge(library, comm.size, x),
        "3 all-reduces + rescale": three_allreduces(library, x),
        "3 all-reduces alone": three_allreduces(library, x, arithmetic=False),
    }
    for way in (three_allreduces(Silent(), x), gather_and_merge(Silent(), comm.size, x)):
        way.run()
    card.synchronize()
    comm.barrier()
    return made


def three_allreduces(library: Library, x: Partial, *, arithmetic: bool = True) -> Way:
    """MAX of lse, SUM of the weights, SUM of the weighted outputs, with the rescaling between: algorithm 3.

    Without the arithmetic it is what the messages cost, and its result is no merge.
    """
    top, weight = torch.empty_like(x.lse), torch.empty_like(x.lse)
    weighted, out, lse = torch.empty_like(x.out), torch.empty_like(x.out), torch.empty_like(x.lse)

    def run() -> None:
        top.copy_(x.lse)
        library.all_reduce(top, "max")
        torch.sub(x.lse, top, out=weight).exp_()
        torch.mul(x.out, weight[:, None], out=weighted)
        library.all_reduce(weight, "sum")
        library.all_reduce(weighted, "sum")
        torch.div(weighted, weight[:, None], out=out)
        torch.add(torch.log(weight, out=lse), top, out=lse)

    def alone() -> None:
        library.all_reduce(top, "max")
        library.all_reduce(weight, "sum")
        library.all_reduce(weighted, "sum")

    if not arithmetic:
        for buffer in (top, weight, weighted):
            buffer.zero_()  # sums of sums stay finite
    return Way(run if arithmetic else alone, lambda: Partial(out, lse), merges=arithmetic)


def gather_and_merge(library: Library, ranks: int, x: Partial) -> Way:
    """All ranks' partials on every rank, then one fold of them all by our kernel."""
    rows, dim = x.out.shape
    layout = LOGSUMEXP.layout({"out": ((rows, dim), np.dtype("f4")), "lse": ((rows,), np.dtype("f4"))})
    size = layout.packed_bytes(rows)
    step = -(-size // 256) * 256
    buffer = torch.zeros((ranks + 1) * step, dtype=torch.uint8, device=x.out.device)
    own = torch.zeros(step, dtype=torch.uint8, device=x.out.device)
    gathered = buffer[: ranks * step]
    fold = bind_device_folds(LOGSUMEXP, layout, buffer, [(rows, [step * rank for rank in range(ranks)], ranks * step)])
    sent, merged = (_views(layout, memory, at, x) for memory, at in ((own, 0), (buffer, ranks * step)))

    def run() -> None:
        sent.out.copy_(x.out)
        sent.lse.copy_(x.lse)
        library.all_gather(own, gathered)
        fold()

    return Way(run, lambda: merged)


def _views(layout: Any, memory: torch.Tensor, at: int, like: Partial) -> Partial:
    """The fields of a packed value in bytes of the card."""
    places = layout.addresses(at, len(like.lse))
    return Partial(
        *(memory[p : p + x.nbytes].view(torch.float32).view(x.shape) for p, x in zip(places, like, strict=True))
    )


def payload(card: Card, batch: int, rank: int) -> Partial:
    """A rank's partials of a decode step, [batch x heads, head dim]; the same in every run."""
    heads, _, dim = card.sizes.heads
    rng = np.random.default_rng([batch, rank])
    out, lse = (rng.standard_normal(shape, dtype=np.float32) for shape in ((batch * heads, dim), (batch * heads,)))
    return Partial(*(torch.from_numpy(one).to(card.place) for one in (out, lse)))
