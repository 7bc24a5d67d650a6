"""Calls for the peer kernel without a communicator, what they must give, and their programs run word by word."""

import random
from math import prod

import numpy as np

from topocomm.execute.device.peer.peer_program import ARENA, INPUT, OUTPUT, peer_program
from topocomm.execute.host.call_engine import Span, Work
from topocomm.planning.schedule.schedule import input_pieces
from topocomm.planning.schedule.transforms import unrolled


def spans(collective, layout, rank):
    """What a rank's value and its result hold."""
    whole = Span(0, layout.leading)
    if not collective.parts:
        return whole, whole
    item, ranks, parts = prod(layout.leading[1:]), collective.ranks, collective.parts
    if collective.name == "alltoall":
        starts, got = [sum(parts[:part]) for part in range(ranks**2)], parts[rank::ranks]
        sent, mine = sum(parts[rank * ranks : (rank + 1) * ranks]), tuple(sum(got[:src]) for src in range(ranks))
        stretches = tuple(zip(starts[rank::ranks], mine, strict=True))
        return Span(starts[rank * ranks], (sent,)), Span(0, (sum(got),), stretches)  # of values with one axis of rows
    own = Span(sum(parts[:rank]), (parts[rank] // item, *layout.leading[1:]))
    if collective.name == "gather" and rank != collective.root:
        whole = Span(0, (0, *layout.leading[1:]))
    return (own, whole) if collective.name in ("allgather", "gather") else (whole, own)


def work_of(plan, operator, layout, rank):
    return Work(plan, unrolled(plan.schedule), operator, layout, 16, rank, *spans(plan.collective, layout, rank))


def cut(value, span, layout):
    """The rows of a whole value that a span holds, in its shape."""
    found = {}
    for f in layout.fields:
        flat = np.asarray(value[f.name]).reshape(layout.rows, *f.row_shape)
        rows = range(span.first, span.first + span.rows)
        if span.stretches:
            ends = [*(at for _, at in span.stretches[1:]), span.rows]
            rows = [first + n for (first, at), end in zip(span.stretches, ends, strict=True) for n in range(end - at)]
        found[f.name] = flat[rows].reshape(*span.leading, *f.row_shape)
    return found


def expected(plan, operator, layout, values):
    """Every rank's result, folded as the plan says: its combines replayed with the CPU's folds; None where none is.

    Args:
        plan: The plan.
        operator: The operator.
        layout: Of the whole payload.
        values: Of every rank, whole; of an allgather each rank's rows count.
    """
    schedule = unrolled(plan.schedule)
    packed = {
        (rank, slot, chunk): pack(layout, values[rank], *schedule.chunks[chunk])
        for rank in range(schedule.ranks)
        for slot, chunk in input_pieces(schedule, rank)
    }
    for round_ in range(schedule.rounds):
        moved = [t for t in schedule.transfer_list() if t.round == round_]
        packed.update({(t.dst, t.dst_slot, t.chunk): packed[t.src, t.src_slot, t.chunk] for t in moved})
        for fold in schedule.combine_list():
            if fold.round == round_:
                rows = schedule.chunks[fold.chunk][1]
                operands = [packed[fold.rank, slot, fold.chunk] for slot in fold.operands]
                packed[fold.rank, fold.out_slot, fold.chunk] = folded(operator, layout, rows, operands)
    results = []
    for rank in range(schedule.ranks):
        span = spans(plan.collective, layout, rank)[1]
        made = {f.name: np.zeros((layout.rows, *f.row_shape), f.dtype) for f in layout.fields}
        some = schedule.outputs_of(rank)
        for _, slot, chunk in some:
            first, rows = schedule.chunks[chunk]
            for name, view in layout.views(packed[rank, slot, chunk], 0, rows).items():
                made[name][first : first + rows] = view
        results.append(cut(made, span, layout) if some else None)
    return results


def pack(layout, value, first, rows):
    buffer = np.full(layout.packed_bytes(rows), 0xA5, np.uint8)
    for name, view in layout.views(buffer, 0, rows).items():
        view[...] = np.asarray(value[name]).reshape(layout.rows, *view.shape[1:])[first : first + rows]
    return buffer


def folded(operator, layout, rows, operands):
    size = -(-layout.packed_bytes(rows) // 64) * 64
    buffer = np.zeros(size * (len(operands) + 1), np.uint8)
    for index, operand in enumerate(operands):
        buffer[index * size : index * size + len(operand)] = operand
    with np.errstate(all="ignore"):
        operator.bind_fold(layout, buffer, rows, [size * index for index in range(len(operands))])(
            layout.views(buffer, size * len(operands), rows)
        )
    return buffer[size * len(operands) :][: layout.packed_bytes(rows)].copy()


class WordsRun:
    """All ranks' programs, word by word as the kernel reads them, whole chunks at a time; memory begins poisoned."""

    def __init__(self, plan, operator, layout, values):
        self.layout, self.operator = layout, operator
        self.works = [work_of(plan, operator, layout, rank) for rank in range(plan.schedule.ranks)]
        self.programs = [peer_program(work) for work in self.works]
        size = self.programs[0].arena_bytes
        assert all(
            program.arena_bytes == size and program.stages == self.programs[0].stages for program in self.programs
        )
        self.arenas = [np.full(size, 0xFF, np.uint8) for _ in self.works]
        self.flags = set()
        self.inputs = [cut(value, work.value, layout) for value, work in zip(values, self.works, strict=True)]
        self.outputs = [
            {f.name: np.full((work.result.rows, *f.row_shape), 77).astype(f.dtype) for f in layout.fields}
            for work in self.works
        ]

    def run(self, seed):
        """Run all, a step of any rank that can go on at a time."""
        draw = random.Random(seed)
        going = {rank: self.rank(rank) for rank in range(len(self.works))}
        idle = 0
        while going:
            rank = draw.choice(list(going))
            try:
                idle = idle + 1 if next(going[rank]) == "waits" else 0
            except StopIteration:
                del going[rank]
                idle = 0
            assert idle < 1000 * len(self.works), "nobody goes on"
        return self.outputs

    def rank(self, rank):
        words = self.programs[rank].words.tolist()
        receivers = set(words[1 : 1 + words[0]])
        starts = words[1 + words[0] :][: len(self.works[rank].parts)]
        for chunk, (start, (_, rows)) in enumerate(zip(starts, self.works[rank].parts, strict=True)):
            take = iter(words[start:]).__next__
            assert take() == rows
            assert [take() for _ in self.layout.fields] == self.layout.addresses(0, rows)
            for _ in range(take()):
                stage = take()
                for _ in range(take()):
                    value = self.read(rank, (take(), take()), rows)
                    for _ in range(take()):
                        peer, at = take(), take()
                        assert peer in receivers
                        self.arenas[peer][at : at + len(value)] = value
                        yield "sends"
                told = [take() for _ in range(take())]
                self.flags |= {(chunk, stage, rank, peer) for peer in told}
                awaited = [take() for _ in range(take())]
                while not all((chunk, stage, peer, rank) in self.flags for peer in awaited):
                    yield "waits"
                for _ in range(take()):
                    target = take(), take()
                    operands = [self.read(rank, (take(), take()), rows) for _ in range(take())]
                    self.write(rank, target, rows, folded(self.operator, self.layout, rows, operands))
                    yield "folds"

    def read(self, rank, place, rows):
        space, at = place
        if space == ARENA:
            return self.arenas[rank][at : at + self.layout.packed_bytes(rows)].copy()
        assert space in (INPUT, OUTPUT)
        fields = (self.inputs if space == INPUT else self.outputs)[rank]
        buffer = np.zeros(self.layout.packed_bytes(rows), np.uint8)
        for name, view in self.layout.views(buffer, 0, rows).items():
            view[...] = fields[name].reshape(-1, *view.shape[1:])[at : at + rows]
        return buffer

    def write(self, rank, place, rows, packed):
        space, at = place
        if space == ARENA:
            self.arenas[rank][at : at + len(packed)] = packed
            return
        assert space == OUTPUT
        for name, view in self.layout.views(packed, 0, rows).items():
            self.outputs[rank][name][at : at + rows] = view
