"""torch's own test_c10d_gloo.py, run against our backend in the place of gloo.

    python tools/soak/torch_cases/c10d_gloo_cases.py FOLDER [--backend topocomm] [--only PATTERN]

FOLDER holds test_c10d_gloo.py and test_c10d_common.py of torch's repository, from `test/distributed` at the tag of the
torch that is installed or an older one. Every case forks 2 or 4 processes. What is left out is printed with the reason;
the status is 1 if a case fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import unittest
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

LEFT_OUT: dict[str, str] = {
    "CompilerTest.test_.*_cpu|CompilerTest.test_nested": "older torch only: needs torch.distributed._spmd",
    "test_init_process_group_for_all_backends": "expects the name gloo",
    "test_round_robin": "torch made it for gloo alone",
    "test_monitored_barrier": "torch has it for gloo alone",
    "test_multi_device_constructor": "network devices of gloo's",
}
"""Cases that cannot pass, by a pattern of `Class.test`, and why."""
SEVERAL = "expected one tensor a rank"
"""In the error of cases that come, after those with one, to several tensors a rank: torch.distributed cannot pass them,
and NCCL refuses them, too."""
NEED_GPUS: dict[str, int] = {}
"""How many GPUs a case needs, by its name, where there are none."""
LIMIT = timedelta(seconds=50)


def stand_in() -> None:
    """Let older files be imported, which name a part that torch has no more; `LEFT_OUT` names the cases of it."""
    gone = ModuleType("torch.distributed._spmd.comm_tensor")
    gone.__dict__.update(_wait_comm=None, CommTensor=None)
    if importlib.util.find_spec("torch.distributed._spmd") is None:
        sys.modules.update({"torch.distributed._spmd": ModuleType("torch.distributed._spmd"), gone.__name__: gone})


def note_cases_of_gpus() -> None:
    """Take down which cases need GPUs, so that no processes are started to find that there is none.

    Those of CommTest take host memory as well, and get it, but for those with cuda in their names.
    """
    import torch
    from torch.testing._internal import common_distributed

    def needs(count: int, **_: Any) -> Any:
        def note(case: Any) -> Any:
            if not re.match(r"CommTest\b.*(?<!_cuda)$", case.__qualname__):
                NEED_GPUS[case.__name__] = count
            return case

        return note

    if not torch.cuda.is_available():
        common_distributed.skip_if_lt_x_gpu = needs  # type: ignore[assignment]
        torch.cuda.set_device = lambda device: None
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
        torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign]


def fork() -> None:
    """Have cases fork their processes from this one, which has imported torch: a second each, not ten.

    A process that has run autograd cannot fork ones that do, so cases of a single process come last.
    """
    from torch import multiprocessing
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    def start(case: Any) -> None:
        case._start_processes(multiprocessing.get_context("fork").Process)

    MultiProcessTestCase._spawn_processes = start  # type: ignore[method-assign, assignment]


def adopt() -> None:
    """Give our groups to whoever asks torch.distributed for gloo."""
    import torch.distributed as dist

    import topocomm.torch  # noqa: F401 - registers the backend
    from topocomm.errors import TopocommError
    from topocomm.torch.creation import create
    from topocomm.torch.process_group import TopocommProcessGroup

    gloo: Any = dist.ProcessGroupGloo

    class Group:
        """What `ProcessGroupGloo(store, rank, size, options)` makes."""

        _Options = gloo._Options
        create_device = gloo.create_device

        def __new__(cls, store: Any, rank: int, size: int, options: Any = None) -> Any:
            if isinstance(options, timedelta):  # the group below ours, which carries messages
                return gloo(store, rank, size, options)
            timeout = LIMIT if options is None else options._timeout
            members = list(range(size))
            return create(
                SimpleNamespace(
                    store=store, group_rank=rank, group_size=size, timeout=timeout, global_ranks_in_group=members
                )
            )

    def renamed(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("backend") == "gloo":
                kwargs["backend"] = "topocomm"
            return function(*("topocomm" if arg == "gloo" else arg for arg in args), **kwargs)

        return call

    issue: Any = TopocommProcessGroup._issue

    @contextmanager
    def raises(case: Any, _: type, words: str) -> Any:
        def issue_and_wait(*args: Any) -> Any:  # arguments are checked when a call's turn comes, not when it is issued
            work = issue(*args)
            work.wait()
            return work

        TopocommProcessGroup._issue = issue_and_wait  # type: ignore[method-assign, assignment]
        try:
            with case.assertRaises((RuntimeError, ValueError, TypeError, TopocommError)):  # noqa: PT027 - is unittest's
                yield
        finally:
            TopocommProcessGroup._issue = issue  # type: ignore[method-assign]

    unittest.TestCase.assertRaisesRegex = raises  # type: ignore[method-assign, assignment]  # the words of errors are our own
    dist.ProcessGroupGloo = Group  # type: ignore[misc, assignment]
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, renamed(getattr(dist, name)))


def load(backend: str) -> ModuleType:
    """Import the cases for the backend."""
    stand_in()
    note_cases_of_gpus()
    fork()
    if backend == "topocomm":
        adopt()
    import test_c10d_gloo  # type: ignore[import-not-found]

    test_c10d_gloo.simple_multi_input_reduce_tests = lambda *_: []  # several tensors a rank: see LEFT_OUT
    return test_c10d_gloo  # type: ignore[no-any-return]


class Outcomes(unittest.TestResult):
    """Prints what becomes of each case as it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def note(self, test: Any, outcome: str, why: str = "") -> None:
        """Count a case, and print it unless it passed."""
        self.count[outcome] += 1
        if outcome != "passed":
            print(f"{test.id().split('.', 1)[1]}: {outcome}{why and ': ' + why}", flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: D102 - unittest's name
        self.note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: D102
        self.note(test, "left out", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: D102
        words = _last_words(str(err[1]))
        self.note(test, "passed in part" if SEVERAL in words else "failed", words)

    addError = addFailure


def _last_words(text: str) -> str:
    """The line of a report that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b", line)]
    return (lines[-1] if lines else text.strip().splitlines()[-1] if text.strip() else "no message")[:300]


def main() -> int:
    """Run the cases one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--backend", choices=("topocomm", "gloo"), default="topocomm", help="gloo to compare with")
    parser.add_argument("--only", default="", help="regular expression found in Class.test")
    args = parser.parse_args()
    sys.path.insert(0, args.folder)
    outcomes = Outcomes()
    groups: Any = unittest.defaultTestLoader.loadTestsFromModule(load(args.backend))
    cases = sorted((test for group in groups for test in group), key=lambda test: not hasattr(test, "world_size"))
    for test in cases:
        name = test.id().split(".", 1)[1]
        if not re.search(args.only, name):
            continue
        why = next((why for pattern, why in LEFT_OUT.items() if re.search(pattern, name)), "")
        if cards := NEED_GPUS.get(re.split(r"[.]|_use_reentrant", name)[1]):
            outcomes.note(test, "left out", f"needs {cards} GPUs")
        elif why:
            outcomes.note(test, "left out", why)
        else:
            test.run(outcomes)
    print(f"{args.backend}: {dict(outcomes.count)}", flush=True)
    return int(outcomes.count["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
