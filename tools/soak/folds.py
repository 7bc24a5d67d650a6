"""Random folds of the compiled part under AddressSanitizer and UndefinedBehaviorSanitizer, beside `combine`.

    python tools/soak/folds.py [--seconds S]

Builds the extensions anew in a temporary folder, with sanitizers; needs cmake, ninja and gcc. Every field of every
operand is memory of its own, so that a read or write beside it ends the run. Without these tools it says so and ends.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
EXTENSIONS = ("topocomm.native._native", "attention.kernels._native")
MOST_ROWS, MOST_OPERANDS = 5000, 5


def main() -> None:
    """Build, then run this program again with the sanitizers' libraries loaded first; or fold, in that second run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--built", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.built is not None:
        soak(options.built, options.seconds)
        return
    missing = [tool for tool in ("cmake", "ninja", "gcc") if shutil.which(tool) is None]
    if missing:
        print(f"folds: left out, no {', '.join(missing)} here")
        return
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        libraries = [output("gcc", f"-print-file-name={name}") for name in ("libasan.so", "libubsan.so")]
        environment = {**os.environ, "LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
        command = [sys.executable, __file__, "--seconds", str(options.seconds), "--built", folder]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def build(folder: str) -> None:
    """Build both extensions with sanitizers in a folder."""
    flags = [f"-DCMAKE_C_FLAGS={SANITIZERS}", "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DCMAKE_C_COMPILER=gcc"]
    output(
        "cmake", "-S", str(ROOT / "tools/native"), "-B", folder, "-G", "Ninja", *flags,
        f"-DPython_EXECUTABLE={sys.executable}",
    )  # fmt: skip
    output("ninja", "-C", folder)


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def soak(built: Path, seconds: float) -> None:
    """Fold random values until the time is over.

    Args:
        built: Where the sanitized extensions are.
        seconds: How long.
    """
    for name in EXTENSIONS:
        path = built / f"{name.replace('.', '/')}.abi3.so"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

    from attention import LOGSUMEXP

    packed = importlib.import_module("tests.operators.packed")
    pairs = [*packed.PAIRS, *[(LOGSUMEXP, np.dtype(np.float32))] * (len(packed.PAIRS) // 8)]
    rng, until, count = np.random.default_rng(), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        fold_once(rng, packed, *pairs[rng.integers(len(pairs))])
        count += 1
    print(f"folds: {count:,} under ASan and UBSan, each as combine")


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


if __name__ == "__main__":
    main()
