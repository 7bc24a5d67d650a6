"""Programs in shared memory: whatever the ranks' speeds, every read comes after its write, and no wait is for ever."""

from itertools import pairwise

import pytest
from hypothesis import given

from tests.examples import examples
from tests.planning.replay import replay, word
from tests.planning.schedules import MACHINES, ROW_BYTES, SWITCHES, any_schedules, plans
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.program.shared_memory_layout import shared_program

ALIGN = 64
CASES = [("allreduce", machine, 0) for machine in MACHINES]
CASES += [(name, (1, ranks), ranks - 1) for name in COLLECTIVES if name != "allreduce" for _, ranks in SWITCHES[::4]]


ROWS = (0, 7, 40)


def marks(number, turn):
    """Each machine has one number of rows in every test run, each number of rows a third of all machines."""
    return [pytest.mark.soak] if (number + turn) % len(ROWS) else []


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((*case, rows), id=f"{rows} rows-{case[0]}-{case[1][0]}x{case[1][1]}", marks=marks(number, turn))
        for turn, rows in enumerate(ROWS)
        for number, case in enumerate(CASES)
    ],
)
def every_program(request):
    """For every algorithm: its name, its schedule, and the programs of all ranks."""
    collective, machine, root, rows = request.param
    found = []
    for plan in plans(machine, collective, rows, root):
        schedule = plan.schedule

        def chunk_bytes(chunk, schedule=schedule):
            return schedule.chunks[chunk][1] * ROW_BYTES

        programs = [shared_program(schedule, rank, chunk_bytes, ALIGN) for rank in range(schedule.ranks)]
        found.append((plan.algorithm, schedule, programs))
    return found


def test_ranks_agree_on_places_and_nothing_is_written_twice(every_program):
    for name, schedule, programs in every_program:
        assert len({program.total_bytes for program in programs}) == 1, name
        for move in schedule.transfer_list():
            there = programs[move.dst].offsets[move.dst_slot, move.chunk]
            assert there == programs[move.src].offsets[move.src_slot, move.chunk], f"{name}: {move}"
        written = [(rank, piece) for rank, program in enumerate(programs) for piece in program.input_pieces]
        written += [(fold.rank, (fold.out_slot, fold.chunk)) for fold in schedule.combine_list()]
        assert len(set(written)) == len(written), name
        ranges = []
        for rank, piece in written:
            start, size = programs[rank].offsets[piece], schedule.chunks[piece[1]][1] * ROW_BYTES
            assert start % ALIGN == 0, name
            ranges += [(start, start + size)] if size else []
        edges = sorted(ranges)
        assert all(before[1] <= after[0] for before, after in pairwise(edges)), name
        assert not edges or edges[-1][1] <= programs[0].total_bytes, name


class Run:
    """All ranks at once. `known[r][w]`: stages of rank w that rank r is sure are done; -1, that w has not begun."""

    def __init__(self, schedule, programs):
        self.schedule, self.programs = schedule, programs
        ranks = range(schedule.ranks)
        self.known = [[-1] * schedule.ranks for _ in ranks]
        self.published = [[] for _ in ranks]  # what every rank knew when it began each of its stages
        self.at = [0] * schedule.ranks
        self.writers = {}  # (rank, slot, chunk) -> the rank that writes what is read there, and in which of its stages
        for rank, program in enumerate(programs):
            self.writers |= {(rank, *piece): (rank, -1) for piece in program.input_pieces}
            for index, stage in enumerate(program.stages):
                self.writers |= {(rank, fold.out_slot, fold.chunk): (rank, index) for fold in stage.folds}
        for move in schedule.transfer_list():
            self.writers[move.dst, move.dst_slot, move.chunk] = self.writers[move.src, move.src_slot, move.chunk]

    def publish(self, rank):
        """Begin a stage: its number, from 1, is the rank's progress until the next begins."""
        self.known[rank][rank] = self.at[rank]
        if len(self.published[rank]) == self.at[rank]:
            self.published[rank].append(tuple(self.known[rank]))

    def step(self, rank):
        """Run the stage if its waits are over; whether they are."""
        index, program = self.at[rank], self.programs[rank]
        awaited = program.waits[index]
        if any(len(self.published[peer]) < progress for peer, progress in awaited):
            return False
        for peer, progress in awaited:  # what is certain is what the peer knew when it came so far
            knew = self.published[peer][progress - 1]
            self.known[rank] = [max(pair) for pair in zip(self.known[rank], knew, strict=True)]
        made = set()
        for fold in program.stages[index].folds:
            for slot in fold.operands:
                self.check(rank, (slot, fold.chunk), made, f"stage {index}")
            made.add((fold.out_slot, fold.chunk))
        self.at[rank] += 1
        return True

    def check(self, rank, piece, made, what):
        if piece in made:
            return
        writer, stage = self.writers[(rank, *piece)]
        known = self.known[rank][writer] if writer != rank else self.at[rank]
        assert known > stage, f"rank {rank} {what} reads {piece}, which rank {writer} may not have written"

    def finish(self):
        """Run to the end, and check the results."""
        while moving := [rank for rank, program in enumerate(self.programs) if self.at[rank] < len(program.stages)]:
            for rank in moving:
                self.publish(rank)
            assert any(self.step(rank) for rank in moving), f"ranks {moving} wait for each other"
        for rank, program in enumerate(self.programs):
            for piece in program.output_pieces:
                self.check(rank, piece, (), "the result")


def test_every_read_is_behind_its_write_and_no_wait_is_for_ever(every_program):
    for name, schedule, programs in every_program:
        try:
            Run(schedule, programs).finish()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@examples(200)
@given(any_schedules())
def test_so_it_is_with_any_schedule(made):
    schedule, chunk_bytes = made
    Run(schedule, [shared_program(schedule, rank, chunk_bytes, ALIGN) for rank in range(schedule.ranks)]).finish()


def everyone_hears_of_all(schedule):
    """Whether the result of every rank holds something of every rank, as in an allreduce."""
    heard = ["" for _ in range(schedule.ranks)]
    for (rank, _), text in replay(schedule).items():
        heard[rank] += text
    return all(word(rank) in text for text in heard for rank in range(schedule.ranks))


def test_who_finishes_what_needs_all_knows_that_all_have_begun_it(every_program):
    """Two memories used in turn rest on it: then everyone has left the call before."""
    for name, schedule, programs in every_program:
        if not everyone_hears_of_all(schedule):
            continue
        run = Run(schedule, programs)
        run.finish()
        for rank, known in enumerate(run.known):
            assert min(known) >= 0, f"{name}: rank {rank} may finish before rank {known.index(-1)} begins"
