"""Programs that all ranks run: phases of computing and collectives, one after the other on each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from topocomm.planning.cost.simulated_work import NO_TASK, SEND, Work, WorkBuilder
from topocomm.planning.routing.routes import Ints


class RankProgram:
    """Work in the order in which ranks do it; a rank goes on when its part of a collective is there.

    Attributes:
        builder: The tasks so far; what is added to it directly must be handed to `follow`.
        last: int64 [ranks]: the task that each rank has finished with; NO_TASK at first.
    """

    def __init__(self, endpoints: Sequence[str], switches: Sequence[str] = ()) -> None:
        """Take the endpoint of every rank, and switches that fold."""
        self.builder = WorkBuilder((*endpoints, *switches))
        self.last: Ints = np.full(len(endpoints), NO_TASK, dtype=np.int64)
        self._rank = {end: rank for rank, end in enumerate(endpoints)}
        self._phase = 0

    def compute(self, duration_us: ArrayLike, label: str) -> None:
        """Let all ranks compute for a time in us, one for all or one for each."""
        ranks = np.arange(len(self.last))
        self._phase += 1
        self.last = self.builder.compute(ranks, duration_us, after=self.last, round_=self._phase, label=label)

    def collective(self, work: Work, label: str) -> None:
        """Let the ranks on the endpoints of `work` do it: none begins before it has finished what is before.

        A rank has done its part when what it receives has arrived and its folds are done, whatever it sent.

        Args:
            work: On endpoints and switches of the program.
            label: Name of the collective, for texts.
        """
        here = [rank for rank, end in enumerate(work.devices) if end in self._rank]
        entry = np.full(len(work.devices), NO_TASK, dtype=np.int64)
        entry[here] = self.last[[self._rank[work.devices[end]] for end in here]]
        numbers = self.builder.include(work, entry, label)
        own = np.flatnonzero((work.kind != SEND) & np.isin(work.src, here))
        sent = np.flatnonzero((work.kind == SEND) & np.isin(work.dst, here))
        index = np.full(len(work.devices), -1, dtype=np.int64)
        index[here] = [self._rank[work.devices[end]] for end in here]
        ranks = np.concatenate([index[work.src[own]], index[work.dst[sent]]])
        self.follow(ranks, np.concatenate([numbers[own], numbers[sent]]), label)

    def follow(self, ranks: Ints, tasks: Ints, label: str) -> None:
        """Let each of these ranks (one entry for each task) go on when its tasks have arrived."""
        order = np.argsort(ranks, kind="stable")
        which, counts = np.unique(ranks, return_counts=True)
        if not len(which):
            return
        self.last = self.last.copy()
        self.last[which] = self.builder.join_groups(which, counts, tasks[order], label=label)
