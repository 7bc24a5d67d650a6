"""torch's own test cases of torch.distributed, from its wheel, run against our backend in the place of gloo.

    python tools/soak/torch_cases/distributed_cases.py [--ranks 3] [--backend topocomm] [--only PATTERN] [--limit-s 60]

Each case has a default group of its own, made anew, so that one that fails leaves nothing behind. What a case says when
it passes itself over is printed, since that is why it is left out; the status is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

SEED = 1234
ON_CARDS = "left out: for GPUs"
LEFT_OUT = {
    "SyncBatchNorm_process_group": "needs torchvision",
    "barrier_timeout_": "expects ranks that start late by themselves: gloo fails it here, too",
    "batch_isend_irecv_mixed_backend_err": "needs NCCL",
    "batch_isend_irecv_op_err": "for GPUs",
    "new_subgroups_with_group_param": "needs 4 ranks",
    "test_get_backend$": "expects the name gloo",
    "monitored_barrier": "torch has it for gloo alone",
    "torch_profiler": "the profiler is off here",
}
"""Cases that cannot pass, by a pattern of their names, and why."""
MEETING_S = 600.0
"""Seconds in which all ranks come to the next case."""


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", default="topocomm", help="topocomm, or gloo to compare with")
    parser.add_argument("--only", default="", help="regular expression found in the names of cases")
    parser.add_argument("--limit-s", type=float, default=60.0, help="time limit of every wait")
    args = parser.parse_args()
    if "RANK" in os.environ:
        return Rank(args).run()
    with socket.socket() as probe, socket.socket() as other, tempfile.TemporaryDirectory() as folder:
        for free in (probe, other):
            free.bind(("127.0.0.1", 0))
        common = {
            **os.environ,
            "BACKEND": "gloo",  # cases ask for it by name before they run
            "WORLD_SIZE": str(args.ranks),
            "TEMP_DIR": folder,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(other.getsockname()[1]),  # for cases that meet by it
            "MEETING_PORT": str(probe.getsockname()[1]),
        }
        probe.close()
        other.close()
        command = [sys.executable, *sys.argv]
        ranks = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in range(args.ranks)]
        return max(rank.wait() for rank in ranks)


class Rank:
    """One rank, which makes every case in turn with the others."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist
        from torch.autograd import profiler

        import topocomm.torch  # noqa: F401 - registers the backend

        torch.set_num_threads(1)
        # Started hundreds of times in one process, beside threads that end, torch's profiler crashes.
        profiler.profile = lambda **_: contextlib.nullcontext()  # type: ignore[assignment, misc]
        self.dist: Any = dist
        self.backend, self.only, self.limit = args.backend, args.only, timedelta(seconds=args.limit_s)
        self.rank, self.size = int(os.environ["RANK"]), args.ranks
        port = int(os.environ["MEETING_PORT"])
        meeting = timedelta(seconds=MEETING_S)
        self.store: Any = self.dist.TCPStore("127.0.0.1", port, self.size, self.rank == 0, timeout=meeting)

    def run(self) -> int:
        """Make all cases; print on rank 0 what became of them."""
        try:
            from torch.testing._internal import common_distributed
        except ModuleNotFoundError as missing:
            sys.exit(f"torch's cases need {missing.name}: pip install {missing.name}")

        common_distributed.skip_if_small_worldsize = lambda case: case  # 3 ranks are as many as these cases need
        from torch.testing._internal.distributed import distributed_test

        os._exit = sys.exit  # type: ignore[assignment]  # by which cases pass themselves over

        class Case(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
            """The cases."""

        count: Counter[str] = Counter()
        folder = Path(os.environ["TEMP_DIR"])
        for name in sorted(name for name in dir(Case) if name.startswith("test") and re.search(self.only, name)):
            distributed_test.Barrier.barrier_id = 0
            os.environ["TEMP_DIR"] = str(folder / name)
            for part in ("barrier", "test_dir", "init_dir"):
                (folder / name / part).mkdir(parents=True, exist_ok=True)
            why = next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, name)), "")
            outcome = f"left out: {why}" if why else ON_CARDS if re.search("cuda|nccl", name) else self.make(Case, name)
            self.store.set(f"{name}/{self.rank}", outcome)
            outcomes = [self.store.get(f"{name}/{rank}").decode() for rank in range(self.size)]
            worst = max(outcomes, key=lambda text: ("passed", "left out", "failed").index(text.split(":")[0]))
            count[worst.split(":")[0]] += 1
            if self.rank == 0 and worst != "passed":
                print(f"{name}: {worst}", flush=True)
        if self.rank == 0:
            print(f"{self.backend}, {self.size} ranks: {dict(count)}", flush=True)
        self.store.add("through", 1)
        while self.rank == 0 and self.store.add("through", 0) < self.size:  # the store is this process's
            pass
        return int(count["failed"] > 0)

    def make(self, kind: Any, name: str) -> str:
        """Make one case: "passed", "left out: why" or "failed: why"."""
        import torch
        from torch.testing._internal.common_distributed import TEST_SKIPS

        store = self.dist.PrefixStore(name, self.store)
        hook = sys.excepthook  # torch puts another one around it each time
        try:
            self.dist.init_process_group(
                self.backend, store=store, rank=self.rank, world_size=self.size, timeout=self.limit
            )
            torch.manual_seed(SEED)  # as in a process of its own
            case = kind(name)
            case.rank, case.file_name = self.rank, os.path.join(os.environ["TEMP_DIR"], name)
            getattr(case, name)()
            outcome = "passed"
        except unittest.SkipTest as skip:
            outcome = f"left out: {skip}"
        except SystemExit as end:
            outcome = f"left out: {next((s.message for s in TEST_SKIPS.values() if s.exit_code == end.code), end.code)}"
        except Exception as error:  # noqa: BLE001 - a case may raise anything
            last = traceback.extract_tb(error.__traceback__)[-1]
            words, where = str(error).split("\n\nTo execute")[0][:300], Path(last.filename).name
            outcome = f"failed: {type(error).__name__}: {words!r} ({where}:{last.lineno})"
        try:
            self.dist.destroy_process_group()
        except Exception as error:  # noqa: BLE001 - a case may have done it
            if outcome == "passed" and self.dist.is_initialized():
                outcome = f"failed: at its end: {error!r}"
        sys.excepthook = hook
        return outcome


if __name__ == "__main__":
    sys.exit(main())
