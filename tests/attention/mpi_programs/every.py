"""All programs beside this one in one job, since ranks take seconds to start; rank 0 prints what each prints."""

import runpy
from pathlib import Path

from mpi4py import MPI

for program in sorted(Path(__file__).parent.glob("*.py")):
    if program.name == Path(__file__).name:
        continue
    MPI.COMM_WORLD.Barrier()  # what the last one printed is out
    if MPI.COMM_WORLD.rank == 0:
        print(program.stem, end=": ", flush=True)
    runpy.run_path(str(program), run_name="__main__")
