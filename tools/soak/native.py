"""The compiled part under sanitizers: folds beside `combine`, engines of ranks that are threads and that are processes.

    python tools/soak/native.py [--seconds S]

Builds the extensions anew in a temporary folder, once with AddressSanitizer and UndefinedBehaviorSanitizer, once with
ThreadSanitizer; needs cmake, ninja and gcc. Without these tools it says so and ends. A sixth of the time each:

    folds      random folds, every field of every operand in memory of its own
    events     random works of the simulator, compiled and plain
    engines    random allreduces, their ranks on threads of one process, and programs with damaged words
    processes  the same as `tools/soak/collectives.py`, under mpirun
    attention  the tests of the attention kernels, again and again; only from a minute on: GCC takes two to build them
    races      `engines` under ThreadSanitizer
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
EXTENSIONS = ("topocomm.native._native", "attention.kernels._native")
LIBRARIES = {"address;undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "exitcode=66", "OPENBLAS_NUM_THREADS": "1"}
SANITIZER_BYTES = 1 << 30
"""Memory of a process that AddressSanitizer may hold back: freed memory, 256 MiB by default, and its shadow."""
ATTENTION_S = 60.0
ATTENTION_TESTS = ("tests/attention/local/test_compiled_attention.py", "tests/attention/decode/test_bound_step.py")
MOST_ROWS, MOST_OPERANDS, MOST_RANKS = 5000, 5, 4
PROCESSES = 3
LEAST_BYTES = 1 << 10
"""Blocks from this length on go in one copy between processes: most that are drawn are short."""


def main() -> None:
    """Build, then run this program again with the sanitizers' libraries loaded first; or soak, in that second run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=[*PARTS], default="folds", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.built is not None:
        load(options.built)
        PARTS[options.part](options.seconds)
        return
    missing = [tool for tool in ("cmake", "ninja", "gcc") if shutil.which(tool) is None]
    if missing:
        print(f"native: left out, no {', '.join(missing)} here")
        return
    attention = ("attention",) if options.seconds >= ATTENTION_S else ()
    plan = {"address;undefined": ("folds", "events", "engines", "processes", *attention), "thread": ("engines",)}
    status = 0
    for sanitizers, parts in plan.items():
        with tempfile.TemporaryDirectory() as folder:
            build(folder, sanitizers, () if "attention" in parts else ("topocomm_native",))
            for part in parts:
                status |= again(folder, sanitizers, part, options.seconds / 6)
    sys.exit(status)


def again(folder: str, sanitizers: str, part: str, seconds: float) -> int:
    """Run a part with sanitized extensions; its exit status."""
    libraries = [output("gcc", f"-print-file-name={name}") for name in LIBRARIES[sanitizers]]
    environment = {**OPTIONS, "LD_PRELOAD": ":".join(libraries)}
    arguments = [__file__, "--seconds", str(seconds), "--built", folder, "--part", part]
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), sys.executable]
    if part == "processes":
        command = ["mpirun", "-n", str(PROCESSES), *command, "-m", "mpi4py"]
    return subprocess.run([*command, *arguments], check=False).returncode


def build(folder: str, sanitizers: str, targets: Sequence[str]) -> None:
    """Build these extensions, or all, with sanitizers in a folder."""
    output(
        "cmake", "-S", str(ROOT / "tools/native"), "-B", folder, "-G", "Ninja", f"-DSANITIZERS={sanitizers}",
        "-DCMAKE_C_COMPILER=gcc", f"-DPython_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    output("ninja", "-C", folder, *targets)


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def load(built: Path) -> None:
    """Load the sanitized extensions in place of the others."""
    for name in EXTENSIONS:
        path = built / f"{name.replace('.', '/')}.abi3.so"
        if not path.exists():
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def soak_folds(seconds: float) -> None:
    """Fold random values until the time is over."""
    from attention import LOGSUMEXP

    packed = importlib.import_module("tests.operators.packed")
    pairs = [*packed.PAIRS, *[(LOGSUMEXP, np.dtype(np.float32))] * (len(packed.PAIRS) // 8)]
    rng, until, count = np.random.default_rng(), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        fold_once(rng, packed, *pairs[rng.integers(len(pairs))])
        count += 1
    print(f"folds: {count:,}, each as combine")


def fold_once(rng: np.random.Generator, packed: Any, operator: Any, dtype: np.dtype[Any]) -> None:
    """Fold a few random values of one operator, into new memory or into an operand, and compare."""
    from attention import LOGSUMEXP

    rows, operands = int(rng.integers(MOST_ROWS) ** rng.random()), int(rng.integers(1, MOST_OPERANDS + 1))
    layout = packed.layout_of(operator, dtype, (rows,))
    address = operator.compiled_fold(layout)
    if address is None:
        return
    names = [f.name for f in layout.fields]
    own_exp = operator is LOGSUMEXP  # NumPy's rounds otherwise
    values = [
        operator.sample(rng, layout) if own_exp else packed.any_value(rng, operator, layout) for _ in range(operands)
    ]
    want = packed.chain(operator, values)
    places = [{name: np.ascontiguousarray(value[name]).copy() for name in names} for value in values]
    into = int(rng.integers(-1, min(operands, 2) if operands <= 2 else 1))
    result = places[into] if into >= 0 else {name: np.empty_like(places[0][name]) for name in names}
    addresses = [place[name].ctypes.data for place in (result, *places) for name in names]
    task = np.array([rows, operands, *(prod(f.row_shape) for f in layout.fields), *addresses], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(task.ctypes.data)
    if own_exp:
        for name in names:
            np.testing.assert_allclose(result[name], want[name], rtol=1e-5, atol=1e-5)
    else:
        packed.assert_same_bits(result, want)


def soak_events(seconds: float) -> None:
    """Simulate random works both ways until the time is over."""
    try_one = importlib.import_module("tests.native.test_events").try_random_work
    rng, until, count = np.random.default_rng(), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        try_one(rng)
        count += 1
    print(f"events: {count:,} works, each as by the plain simulation")


def soak_engines(seconds: float) -> None:
    """Run random allreduces on threads, and damaged programs, until the time is over."""
    damage = importlib.import_module("tests.native.test_engine").try_random_damage
    rng, until, count = np.random.default_rng(), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        damage(rng, 50)
        count += reduce_on_threads(rng)
    print(f"engines: {count:,} calls on threads, each right")


def reduce_on_threads(rng: np.random.Generator) -> int:
    """Make calls of one random plan, every way in turn; how many."""
    jobs, machines, plans = (
        importlib.import_module(f"tests.{name}") for name in ("execute.engine_jobs", "machines", "plans")
    )
    from topocomm import MAX, SUM

    ranks, rows = int(rng.integers(1, MOST_RANKS + 1)), int(rng.integers(MOST_ROWS) ** rng.random())
    operator = (SUM, MAX)[rng.integers(2)]
    if rng.random() < 0.2:
        operator = replace(operator, kernel=None)
    layout = operator.layout({"value": ((rows,), np.float32)})
    found = plans.every_plan(machines.switch(ranks), "allreduce", operator, layout)
    job = jobs.Job(found[rng.integers(len(found))], layout, operator, bare=False)
    values = rng.integers(-99, 99, (ranks, rows)).astype(np.float32)
    want = values.sum(0) if operator.name == "sum" else values.max(0)
    steps = [jobs.WAYS[step] for step in rng.integers(len(jobs.WAYS), size=24)]

    def body(rank: int) -> None:
        for step in steps:
            np.testing.assert_array_equal(step(job, rank, {"value": values[rank]})["value"], want)

    job.on_threads(body)
    job.close()
    return ranks * len(steps)


def soak_processes(seconds: float) -> None:
    """Run random collectives between processes until the time is over."""
    sys.argv[1:] = ["--seconds", str(seconds)]
    sys.path.insert(0, str(Path(__file__).parent))
    collectives: Any = importlib.import_module("collectives")
    collectives.GROWTH_LIMIT_BYTES += SANITIZER_BYTES
    least_bytes: dict[str, int] = importlib.import_module("topocomm.execute.host.single_copy").LEAST_BYTES
    least_bytes.update(dict.fromkeys(least_bytes, LEAST_BYTES))
    collectives.main()


def soak_attention(seconds: float) -> None:
    """Run the tests of the attention kernels, whose examples are drawn anew, until the time is over."""
    import pytest

    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        status = pytest.main(["-q", "-p", "no:cacheprovider", *(str(ROOT / path) for path in ATTENTION_TESTS)])
        if status:
            sys.exit(int(status))
        count += 1
    print(f"attention: {count} times all tests of the kernels")


PARTS: dict[str, Callable[[float], None]] = {
    "folds": soak_folds,
    "events": soak_events,
    "engines": soak_engines,
    "processes": soak_processes,
    "attention": soak_attention,
}


if __name__ == "__main__":
    main()
