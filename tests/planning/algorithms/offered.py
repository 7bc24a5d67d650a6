"""One algorithm as the planner offers it on a switch, and the counts that are documented of it."""

from tests.machines import switch
from tests.planning.replay import builds, collective_of
from topocomm.planning.proof.verify import verify

RANKS = [*range(2, 18), 31, 32, 33, 64]


def offered(name, algorithm, ranks, *, rows=None, root=0):
    """The schedule of an algorithm for so many ranks; a row each unless said otherwise."""
    rows = ranks if rows is None else rows
    return builds(switch(ranks), collective_of(name, ranks, root=root, rows=rows), rows)[algorithm]()


def takes(name, algorithm, rounds):
    """Check the rounds of an algorithm for every number of ranks, with one message a port and round."""
    for ranks in RANKS:
        schedule = offered(name, algorithm, ranks)
        assert schedule.rounds == rounds(ranks), ranks
        proof = verify(
            schedule,
            collective_of(name, ranks, rows=ranks),
            endpoints=switch(ranks).endpoints,
            ports=1,
            serialised=False,
        )
        assert proof.ports_respected


def most_rows_sent(schedule):
    """Rows that the busiest rank sends."""
    sent = [0] * schedule.ranks
    for move in schedule.transfer_list():
        sent[move.src] += schedule.chunks[move.chunk][1]
    return max(sent)


def messages(schedule):
    """(round, source, destination) of every message."""
    return {(move.round, move.src, move.dst) for move in schedule.transfer_list()}


def doublings(ranks):
    """floor(log2 P), two more where P is not a power of two."""
    return ranks.bit_length() - 1 + 2 * (ranks & (ranks - 1) > 0)
