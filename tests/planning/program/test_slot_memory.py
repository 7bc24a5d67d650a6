"""Programs of all ranks, run on bytes that know which value they hold: nothing is lost, and nobody waits for ever."""

import random
from bisect import bisect_right
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.planning.program.slot_memory import common_cuts, rank_program
from topocomm.planning.schedule.schedule import input_pieces

ALIGN = 64
MADE = schedules() | any_schedules()


class Arena:
    """The memory of one rank: which piece every byte range holds."""

    def __init__(self, program, chunk_bytes):
        self.program, self.chunk_bytes = program, chunk_bytes
        self.held = {}

    def range(self, piece):
        start = self.program.offsets[piece]
        return start, start + self.chunk_bytes(piece[1])

    def overlapping(self, piece, others):
        """Those of `others` that share bytes with the piece."""
        low, high = self.range(piece)
        return [other for other in others for a, b in [self.range(other)] if max(low, a) < min(high, b)]

    def write(self, piece):
        for lost in self.overlapping(piece, self.held):
            del self.held[lost]
        self.held[piece] = True

    def read(self, pieces, what):
        for piece in pieces:
            assert piece in self.held, f"{what} reads {piece}, whose bytes hold something else"


def run(program, chunk_bytes):
    """Run one rank's program on its arena alone: messages arrive as the stage begins, the earliest they may."""
    arena = Arena(program, chunk_bytes)
    for piece in program.input_pieces:
        arena.write(piece)
    for stage in program.stages:
        sent = [piece for pieces in stage.sends.values() for piece in pieces]
        received = [piece for pieces in stage.receives.values() for piece in pieces]
        arena.read(sent, "a message")
        for index, piece in enumerate(received):
            assert not arena.overlapping(piece, [*sent, *received[:index], *program.input_pieces]), piece
            arena.write(piece)
        arena.read(sent, "a message under way")
        for fold in stage.folds:
            operands = [(slot, fold.chunk) for slot in fold.operands]
            out = (fold.out_slot, fold.chunk)
            arena.read(operands, "a fold")
            heirs = operands if len(operands) == 2 else operands[:1]
            for operand in arena.overlapping(out, operands):
                assert operand in heirs, f"{out} is written over operand {operand} while it is still read"
                assert arena.range(operand) == arena.range(out)
            arena.write(out)
        arena.read(program.input_pieces, "the caller")
    arena.read(program.output_pieces, "the result")


@examples(100)
@given(MADE)
def test_no_live_value_is_overwritten(made):
    schedule, chunk_bytes = made
    for rank in range(schedule.ranks):
        run(rank_program(schedule, rank, chunk_bytes, ALIGN), chunk_bytes)


@examples(60)
@given(MADE, st.sampled_from([1, 8, 64]))
def test_pieces_are_aligned_and_inside_the_arena(made, align):
    schedule, chunk_bytes = made
    for rank in range(schedule.ranks):
        program = rank_program(schedule, rank, chunk_bytes, align)
        for piece, offset in program.offsets.items():
            assert offset % align == 0
            assert 0 <= offset <= program.arena_bytes - chunk_bytes(piece[1])
        slots = [(row[3], row[4], row[5]) for row in schedule.transfers.tolist()]
        slots += [(row[1], row[2], row[3]) for row in schedule.combines.tolist()]
        slots += [(rank, *piece) for piece in input_pieces(schedule, rank)]
        assert set(program.offsets) == {(slot, chunk) for owner, slot, chunk in slots if owner == rank}


@examples(60)
@given(MADE)
def test_stages_hold_whole_rounds_and_all_that_the_rank_does(made):
    schedule, chunk_bytes = made
    for rank in range(schedule.ranks):
        stages = rank_program(schedule, rank, chunk_bytes, ALIGN).stages
        rounds = [[key[0] for key in (*s.sends, *s.receives)] + [fold.round for fold in s.folds] for s in stages]
        filled = [sorted(some) for some in rounds if some]
        assert all(before[-1] < after[0] for before, after in pairwise(filled))
        assert [fold for stage in stages for fold in stage.folds] == schedule.combines_of(rank)
        moved = [
            (key, piece) for s in stages for side in (s.sends, s.receives) for key, ps in side.items() for piece in ps
        ]
        wanted = [
            ((m.round, m.dst, m.path), (m.src_slot, m.chunk))
            if m.src == rank
            else ((m.round, m.src, m.path), (m.dst_slot, m.chunk))
            for m in schedule.transfers_of(rank)
        ]
        assert sorted(moved) == sorted(wanted)


def messages(stages):
    """Per (source, destination): the messages, (round, path, chunks), as sent and as received, in order."""
    sent, received = {}, {}
    for rank, own in enumerate(stages):
        for stage in own:
            for (round_, peer, path), pieces in stage.sends.items():
                sent.setdefault((rank, peer), []).append((round_, path, [chunk for _, chunk in pieces]))
            for (round_, peer, path), pieces in stage.receives.items():
                received.setdefault((peer, rank), []).append((round_, path, [chunk for _, chunk in pieces]))
    return sent, received


@examples(60)
@given(MADE)
def test_messages_of_two_ranks_meet_in_order(made):
    schedule, chunk_bytes = made
    sent, received = messages([rank_program(schedule, r, chunk_bytes, ALIGN).stages for r in range(schedule.ranks)])
    assert sent == received


@examples(60)
@given(MADE, st.integers(0, 2**16))
def test_the_least_open_message_is_posted_on_both_sides_whatever_comes_first(made, seed):
    schedule, chunk_bytes = made
    chance = random.Random(seed)
    left = []  # per rank, the messages of the stages it still has to do
    for rank in range(schedule.ranks):
        stages = rank_program(schedule, rank, chunk_bytes, ALIGN).stages
        left.append(
            [
                {(round_, rank, peer, path) for round_, peer, path in stage.sends}
                | {(round_, peer, rank, path) for round_, peer, path in stage.receives}
                for stage in stages
            ]
        )
    open_ = {message for own in left for stage in own for message in stage}
    while open_:
        for own in left:
            while own and not own[0]:
                own.pop(0)
        posted = [message for message in open_ if all(left[rank] and message in left[rank][0] for rank in message[1:3])]
        least = min(open_)[0]
        assert {message for message in open_ if message[0] == least} <= set(posted)
        done = set(chance.sample(sorted(posted), chance.randint(1, len(posted))))
        open_ -= done
        for own in left:
            if own:
                own[0] -= done
    assert not any(stage for own in left for stage in own)


@examples(100)
@given(MADE)
def test_with_common_cuts_both_ends_of_a_message_are_in_the_same_stage_of_rounds(made):
    """A stage of messages on a device is one step: what one rank starts in it the other must start in it too."""
    schedule, chunk_bytes = made
    cuts = common_cuts(schedule)
    rounds = sorted(cuts)
    programs = [rank_program(schedule, rank, chunk_bytes, ALIGN, cuts) for rank in range(schedule.ranks)]
    sent, received = messages([program.stages for program in programs])
    assert sent == received
    for program in programs:
        run(program, chunk_bytes)
        parts = [
            {bisect_right(rounds, round_) for round_, _, _ in (*stage.sends, *stage.receives)}
            for stage in program.stages
            if stage.sends or stage.receives
        ]
        assert all(len(part) == 1 for part in parts), "a stage goes over a cut"
        numbers = [number for part in parts for number in part]
        assert numbers == sorted(set(numbers)), "two stages lie between two cuts"
