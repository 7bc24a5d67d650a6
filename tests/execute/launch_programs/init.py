"""Run by test_bootstrap under any launcher: what topocomm.init makes of it, and of a helper that rank 0 starts."""

import subprocess
import sys

import numpy as np
import pytest

import topocomm
from tests.machines import switch
from topocomm import SUM

comm = topocomm.init()
assert topocomm.init() is comm
total = comm.allreduce(np.array([comm.rank + 1.0]), SUM)[0]
assert total == comm.size * (comm.size + 1) / 2
if comm.size > 1:
    assert sorted(place.rank for place in comm.topology.ranks) == list(range(comm.size))
assert not {"numba", "llvmlite"} & sys.modules.keys(), "built-in operators need no compiler"
with pytest.raises(topocomm.TopocommError, match="called before with another topology"):
    topocomm.init(switch(9))
said = f"{comm.session.transport.name}, {comm.size} ranks"
if comm.rank == 0 and "helper" not in sys.argv:
    command = [sys.executable, __file__, "helper"]
    helper = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said += f"; helper: {helper.stdout.strip() or helper.stderr[-500:]}"
comm.close()
with topocomm.init(switch(comm.size)) as again:
    assert again is not comm
    assert again.topology.name == f"switch of {comm.size}"
    again.barrier()
if comm.rank == 0:
    print(said, flush=True)
