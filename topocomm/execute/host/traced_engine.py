"""A staged engine that notes when its call, its rounds and its folds began and ended.

Compiled calls have no moment at which Python could look at the clock: while calls are traced all run stage by stage,
in the memory and by the messages that they would run in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import Work
from topocomm.execute.host.staged_engine import StagedEngine
from topocomm.execute.liveness.call_trace import CallTrace, now_ns
from topocomm.execute.transports.transport import Batch, Message
from topocomm.planning.schedule.schedule import Combine, Piece


class _TracedBatch(Batch):
    """Messages, and waits, of one stage; notes how long they take."""

    def __init__(self, batch: Batch, trace: CallTrace, name: str, facts: dict[str, object]) -> None:
        self._batch, self._trace, self._name, self._facts = batch, trace, name, facts
        self._began_ns = 0

    def start(self) -> None:
        self._began_ns = now_ns()
        self._batch.start()

    def wait(self, timeout_s: float) -> bool:
        done = self._batch.wait(timeout_s)
        if done and self._began_ns:
            self._trace.add("rounds", self._name, self._began_ns, self._facts)
            self._began_ns = 0
        return done

    def pending(self) -> tuple[list[Message], list[Message]]:
        return self._batch.pending()

    def free(self) -> None:
        self._batch.free()


class TracedEngine(StagedEngine):
    """As `StagedEngine`, with a trace."""

    def __init__(
        self, trace: CallTrace, work: Work, memory: Any, program: Any, batches: Sequence[Batch | None], **more: Any
    ) -> None:
        self._trace, self._began_ns, plan = trace, 0, work.plan
        self._facts: dict[str, object] = {
            "bytes": plan.payload_bytes,
            "algorithm": plan.algorithm,
            "operator": work.operator.name,
            "predicted_us": round(plan.figures.predicted_us, 3),
        }
        traced = []
        for stage, batch in zip(program.stages, batches, strict=True):
            rounds = sorted({key[0] + 1 for key in (*stage.sends, *stage.receives)})
            facts: dict[str, object] = {
                "sends": _messages(work, stage.sends),
                "receives": _messages(work, stage.receives),
                "rounds": rounds,
            }
            name = f"round {'-'.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))}" if rounds else "wait"
            traced.append(None if batch is None else _TracedBatch(batch, trace, name, facts))
        super().__init__(work, memory, program, traced, **more)

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        self._began_ns = now_ns()
        return super().begin(fields, target, apart)

    def _finish(self) -> None:
        super()._finish()
        self._trace.add("calls", self._work.plan.title, self._began_ns, self._facts)

    def _bind(self, stages: Any, results: Sequence[Piece]) -> Any:
        bound, last = super()._bind(stages, results)
        kept = [[self._noted(fold, combine) for fold, combine in zip(folds, stage.folds, strict=False)]
                for folds, stage in zip(bound, stages, strict=True)]  # fmt: skip
        return kept, last

    def _noted(self, fold: Callable[[], None], combine: Combine) -> Callable[[], None]:
        facts: dict[str, object] = {
            "values": len(combine.operands),
            "bytes": len(combine.operands) * self._work.chunk_bytes(combine.chunk),
        }

        def run() -> None:
            began_ns = now_ns()
            fold()
            self._trace.add("folds", "fold", began_ns, facts)

        return run


def _messages(work: Work, moves: dict[tuple[int, int, int], list[Piece]]) -> list[dict[str, int]]:
    """Peer and bytes of every message of a stage in one direction."""
    return [
        {"rank": peer, "bytes": sum(work.chunk_bytes(chunk) for _, chunk in pieces)}
        for (_, peer, _), pieces in moves.items()
    ]
