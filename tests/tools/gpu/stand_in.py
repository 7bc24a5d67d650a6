"""Runs a program of tools/gpu with the CPU in the card's place: kernels in Triton's interpreter, tiny problems.

    python tests/tools/gpu/stand_in.py tools/gpu/PROGRAM.py ARGUMENTS

PLANT=FILE runs that file before the program: a fault that it must find. BLOCK="numba ..." hides modules.
"""

import importlib.util
import os
import runpy
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT)]
for _name in os.environ.get("BLOCK", "").split():
    sys.modules[_name] = None  # an import of it says that there is none
from tests import interpreted  # noqa: E402, F401, I001 before anything that imports triton

import numpy as np  # noqa: E402
import torch  # noqa: E402
from triton.runtime.interpreter import GridExecutor  # noqa: E402

from topocomm import MAX, SUM  # noqa: E402


class Stopwatch:
    """The CPU's clock."""

    def start(self):
        self._began_ns = time.perf_counter_ns()

    def stop(self):
        self._ended_ns = time.perf_counter_ns()

    def us(self):
        return (self._ended_ns - self._began_ns) / 1e3


class Library:
    """What NCCL does, between threads."""

    def __init__(self, comm):
        self.comm = comm

    def all_reduce(self, x, op):
        x.copy_(torch.from_numpy(self.comm.allreduce(x.numpy().copy(), {"sum": SUM, "max": MAX}[op])))

    def all_gather(self, x, into):
        into.copy_(torch.from_numpy(self.comm.allgather(x.numpy().copy())))

    version = "stand-in"

    def close(self):
        pass


@contextmanager
def nothing(_):
    yield


def one_at_a_time():
    """The interpreter has no threads: launches wait for each other."""
    launch, lock = GridExecutor.__call__, threading.Lock()

    def locked(self, *args, **options):
        with lock:
            return launch(self, *args, **options)

    GridExecutor.__call__ = locked


def stand_in():
    """A Card on the CPU."""
    import card

    class Cpu(card.Card):
        place = torch.device("cpu")
        interpreted = True
        name, cores = "stand-in", 8
        sizes = card.Sizes(
            heads=(2, 1, 16), even_heads=(2, 2, 16), latent=(2, 1, 48, 32),
            tokens=(48,), batches=(1,), prompts=(20,), cold_bytes=1 << 14,
            block_us=1.0, rounds=1, merged=3, ranks=(2,), payload_batches=(1,), layers=1, vocabulary=64,
            prompt=17, new_tokens=2, new_of_transformers=2, most_keys=40, in_graph=2, candidates=2, key_heads=(1, 2),
            groups=(1, 2), fold_rows=(1, 7, 129, 301),
        )  # fmt: skip

        def synchronize(self):
            pass

        def answers(self):
            return True

        def stopwatch(self):
            return Stopwatch()

        def stream(self):
            return None

        def on(self, stream):
            return nothing(stream)

        def graph(self, run, stream=None):
            return run

        def library(self, comm):
            return Library(comm)

        def free_bytes(self):
            return 1 << 24

    made = Cpu()
    card.the_card = lambda: made
    return made


def main():
    script = Path(sys.argv[1]).resolve()
    sys.argv[:] = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")
    os.environ["PYTHON"] = f"{sys.executable} {Path(__file__).resolve()}"  # for the processes that it starts
    os.environ["TRITON_INTERPRET"] = "1"  # for kernels of the program's own
    one_at_a_time()
    stand_in()
    if "PLANT" in os.environ:
        spec = importlib.util.spec_from_file_location("plant", os.environ["PLANT"])
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
