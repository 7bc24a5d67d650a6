"""Whether what a program prints depends on the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])


def printed(program: str) -> set[bytes]:
    """What a program prints under two hash seeds: one text if the seed changes nothing."""
    command, found = [sys.executable, "-c", program], set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ROOT}
        found.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    return found
