"""Operators of one's own: the longest run of dry days in a record that lies in pieces on several ranks.

mpirun -n 4 python docs/examples/custom_operator.py, or without mpirun for one rank.
"""

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm import Field, Operator

NAMES = ("days", "first", "last", "best")
FIELDS = tuple(Field(name, dtype=np.int64) for name in NAMES)
NOTHING = dict.fromkeys(NAMES, 0)


def combine(a, b):
    a_is_dry, b_is_dry = a["first"] == a["days"], b["last"] == b["days"]
    return {
        "days": a["days"] + b["days"],
        "first": a["first"] + a_is_dry * b["first"],  # dry days at the start of the record
        "last": b["last"] + b_is_dry * a["last"],  # and at its end
        "best": np.maximum(np.maximum(a["best"], b["best"]), a["last"] + b["first"]),
    }


# The same rule compiled, for one row at a time. A field without axes of its own comes as an array of one item.
def combine_row(a, a_first, a_last, a_best, b, b_first, b_last, b_best, days, first, last, best):  # noqa: PLR0913
    days[0] = a[0] + b[0]
    first[0] = a_first[0] + b_first[0] if a_first[0] == a[0] else a_first[0]
    last[0] = b_last[0] + a_last[0] if b_last[0] == b[0] else b_last[0]
    best[0] = max(a_best[0], b_best[0], a_last[0] + b_first[0])


def whole_days(rng, layout):
    """Values to try the laws on: numbers of days that can be, here of one day or none."""
    dry, there = rng.integers(0, 2, (2, *layout.leading))
    return {"days": there, **dict.fromkeys(NAMES[1:], dry * there)}


streak = Operator("streak", FIELDS, combine, NOTHING)
compiled = Operator("streak", FIELDS, combine, NOTHING, kernel=topocomm.row_kernel(combine_row), sample=whole_days)


def main():
    with topocomm.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
        dry = np.random.default_rng(0).random((36500, 3)) < 0.9  # the days of a century at three places, on every rank
        mine = np.array_split(dry, comm.size)[comm.rank]
        days = [{"days": np.ones(3, np.int64), **dict.fromkeys(NAMES[1:], day.astype(np.int64))} for day in mine]
        piece = days[0]
        for day in days[1:]:
            piece = combine(piece, day)
        longest = comm.allreduce(piece, streak)["best"]
        assert (comm.allreduce(piece, compiled)["best"] == longest).all()
        report = topocomm.check_laws(compiled)
        assert report.ok, report

        breaks = [np.flatnonzero(np.diff(np.r_[False, place, False].astype(int))) for place in dry.T]  # by NumPy alone
        assert longest.tolist() == [int((ends[1::2] - ends[::2]).max()) for ends in breaks]
        if comm.rank == 0:
            print(f"longest runs of dry days: {longest.tolist()}")
            print(f"laws that hold: {', '.join(law.name for law in report.laws if law.claimed)}")


if __name__ == "__main__":
    main()
