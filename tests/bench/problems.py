"""Results of a problem's collective on threads."""

from topocomm import run_local
from topocomm.bench.methods import Ours


def results(problem, prepared=False):
    def body(comm):
        ours = Ours(comm, problem, prepared=prepared)
        ours.prepare(problem.value(comm.rank), problem.empty_result())
        ours.run()
        return ours.result()

    return run_local(body, ranks=problem.ranks)
