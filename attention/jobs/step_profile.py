"""Where the time of decode steps goes on each rank: `python -m attention generate --profile`.

While a profile runs, clocks are put around what a step calls: the hooks, mask, attention and cache functions that
transformers is given, inside of them the compiled kernel, and the collectives. Nothing of this is in the way of other
steps. What a clock takes itself, a microsecond or two a call, is measured first and left out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from attention.jobs.job_launch import say
from topocomm import Communicator, PreparedCall

MODEL, LOCAL, REDUCTION, PYTHON = "model", "local attention", "reduction", "Python"
WAITING = "waiting"

TRIALS = 2_000
"""Calls by which a clock is measured."""
COLLECTIVES = ("allreduce", "allgather", "broadcast", "reduce_scatter", "allgather_bytes")
"""Methods of a `Communicator` that a step calls."""
HOOKS = ("before_pass", "after_pass", "before_decoder", "after_decoder")


class StepProfile:
    """The times of one rank's decode steps, from the first `lap` to the last.

    Attributes:
        ns: Nanoseconds by part; `REDUCTION` is with the waiting for other ranks.
        calls: Calls with a clock, by the part that was left and the one that was entered.
        reductions: Nanoseconds of each collective, in order.
        python_ns: Nanoseconds of `PYTHON` by token.
    """

    def __init__(self) -> None:
        self.ns = dict.fromkeys((MODEL, LOCAL, REDUCTION, PYTHON), 0)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.tokens = 0
        self.reductions: list[int] = []
        self.python_ns: list[int] = []
        self.part: str | None = None
        """Which part runs; None: the profile does not."""
        self.since = 0
        """Nanoseconds at which it began."""
        self.kernel_ns = np.zeros(1, np.int64)
        """Of the kernel in steps that are one call in C, which adds them up; they count as `PYTHON` until the lap."""

    def lap(self) -> None:
        """End a step, and begin the next one; the first time only begin. Called by the model's loop."""
        if self.part is None:
            self.since, self.part = time.perf_counter_ns(), MODEL
        else:
            now = time.perf_counter_ns()
            self.ns[self.part] += now - self.since
            self.ns[LOCAL] += int(self.kernel_ns[0])
            self.ns[PYTHON] -= int(self.kernel_ns[0])
            self.python_ns.append(self.ns[PYTHON] - sum(self.python_ns))
            self.since = now
            self.tokens += 1
        self.kernel_ns[0] = 0

    def leave_out(self, outside_ns: float, inside_ns: float) -> None:
        """Take off what each clock took of the part that called, and of the part that it measured."""
        measured_ns = self.ns[PYTHON]
        for (before, part), count in self.calls.items():
            self.ns[before] -= round(count * outside_ns)
            self.ns[part] -= round(count * inside_ns)
        self.python_ns = [ns - (measured_ns - self.ns[PYTHON]) // self.tokens for ns in self.python_ns]


@dataclass(frozen=True)
class StepTimes:
    """Of all ranks, for each token.

    Attributes:
        us: float64 [ranks, parts] microseconds, in the order of `PARTS`.
        python_us: float64 [ranks, tokens] microseconds, of each token.
        layers: Of the model.
        tokens: How many there were.
    """

    us: np.ndarray[Any, np.dtype[np.float64]]
    python_us: np.ndarray[Any, np.dtype[np.float64]]
    layers: int
    tokens: int

    PARTS: ClassVar = (MODEL, LOCAL, REDUCTION, WAITING, PYTHON)

    @classmethod
    def gathered(cls, profile: StepProfile, comm: Communicator, layers: int) -> StepTimes:
        """Exchange what the ranks measured; collective.

        Ranks come to a collective at different times and leave it together, so the one that spent least time in it
        came last: what others spent more is waiting. No clocks are compared.
        """
        parts = [profile.ns[part] for part in (MODEL, LOCAL, PYTHON)]
        own = np.array([*profile.reductions, *profile.python_ns, *parts], np.int64)
        ranks = np.stack([np.asarray(x).view(np.int64) for x in comm.allgather_bytes(own.view(np.uint8))])
        count = len(profile.reductions)
        reductions, python, others = ranks[:, :count], ranks[:, count:-3], ranks[:, -3:]
        least = np.broadcast_to(reductions.min(0, initial=np.iinfo(np.int64).max), reductions.shape)
        columns = others[:, 0], others[:, 1], least.sum(1), (reductions - least).sum(1), others[:, 2]
        return cls(np.stack(columns, 1) / (1e3 * profile.tokens), python / 1e3, layers, profile.tokens)

    def lines(self) -> Iterator[str]:
        """A table with a line for each rank, in milliseconds, and Python's share for each layer.

        The latter by the median token and the least one: of the mean, programs that want the same processor are most.
        """
        rows = [(f"rank {rank}", *(f"{us / 1e3:.3f}" for us in (*row, row.sum()))) for rank, row in enumerate(self.us)]
        table = [("", *self.PARTS, "in all"), *rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        yield f"profile: milliseconds a token, over {self.tokens} tokens"
        for first, *cells in table:
            numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            yield "  ".join(("", first.ljust(widths[0]), *numbers))
        median_us, least_us = (f(self.python_us, axis=1).max() / self.layers for f in (np.median, np.min))
        yield (
            f"profile: Python around kernel and reduction {median_us:.0f} us a layer "
            f"(median token; least {least_us:.0f})"
        )


@contextmanager
def profiled() -> Iterator[StepProfile]:
    """A profile for this thread, with clocks in place meanwhile."""
    profile, costs_ns = StepProfile(), _clock_ns()
    with _in_place():
        _own.profile = profile
        try:
            yield profile
        finally:
            del _own.profile
            profile.leave_out(*costs_ns)


def _clock_ns() -> tuple[float, float]:
    """Nanoseconds that a clock takes of the part that calls, and of the one that it measures: the least of some runs.

    Caches are warm here; in a model a clock takes longer, which stays with the parts.
    """

    def nothing() -> None:
        pass

    def spent_ns(function: Callable[[], None]) -> tuple[int, int]:
        profile = _own.profile = StepProfile()
        profile.lap()
        for _ in range(TRIALS):
            function()
        profile.lap()
        del _own.profile
        return profile.ns[MODEL], profile.ns[LOCAL]

    clocked = _clocked(LOCAL, nothing)
    without = min(spent_ns(nothing)[0] for _ in range(5))
    outside, inside = (min(spent) for spent in zip(*(spent_ns(clocked) for _ in range(5)), strict=True))
    return max(outside - without, 0) / TRIALS, inside / TRIALS


_own = threading.local()
_lock = threading.Lock()
_clocks: ExitStack | None = None
_users = 0


@contextmanager
def _in_place() -> Iterator[None]:
    """Put the clocks in place; ranks on threads share them, and the last one takes them away."""
    global _clocks, _users
    with _lock:
        if _users == 0:
            _clocks = _put_clocks()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                assert _clocks is not None
                _clocks.close()


def _put_clocks() -> ExitStack:
    from transformers import AttentionInterface, AttentionMaskInterface

    from attention.huggingface import generation, hf_attention, hf_masks
    from attention.huggingface.sharded_cache import ShardedCache

    places: list[tuple[Any, str, str]] = [(generation, name, PYTHON) for name in HOOKS]
    places += [(ShardedCache, "update", PYTHON), (PreparedCall, "__call__", REDUCTION)]
    places += [(Communicator, name, REDUCTION) for name in COLLECTIVES]
    stack = ExitStack()

    def put(owner: Any, name: str, clocked: Callable[..., Any]) -> None:
        stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, clocked)

    for owner, name, part in places:
        put(owner, name, _clocked(part, getattr(owner, name)))
    try:
        native = import_module("attention.kernels._native")
    except ImportError:
        say("profile: the compiled kernel was not built, so local attention counts as Python")
    else:
        put(native, "attend", _clocked(LOCAL, native.attend))
        put(native, "bind_step", partial(_bind_clocked, native.bind_step))
    interfaces = (
        (AttentionInterface, hf_attention.sharded_attention),
        (AttentionMaskInterface, hf_masks.sharded_mask),
    )
    for interface, function in interfaces:
        interface.register(hf_attention.IMPLEMENTATION, _clocked(PYTHON, function))
        stack.callback(interface.register, hf_attention.IMPLEMENTATION, function)
    return stack


def _bind_clocked(bind_step: Callable[..., Any], *args: Any) -> Any:
    """The steps with a clock around the kernel, in C: the last argument is where it adds up."""
    profile = getattr(_own, "profile", None)
    return bind_step(*args[:-1], None if profile is None else profile.kernel_ns.__dlpack__())


def _clocked(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a clock around it; inside of the same part it runs as it is."""
    clock, is_reduction = time.perf_counter_ns, part == REDUCTION

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        profile = getattr(_own, "profile", None)
        if profile is None or profile.part is None or profile.part is part:
            return function(*args, **kwargs)
        before, ns = profile.part, profile.ns
        profile.calls[before, part] += 1
        now = clock()
        ns[before] += now - profile.since
        profile.since, profile.part = now, part
        try:
            return function(*args, **kwargs)
        finally:
            now = clock()
            spent = now - profile.since
            ns[part] += spent
            if is_reduction:
                profile.reductions.append(spent)
            profile.since, profile.part = now, before

    return run
