"""Reading the files of Linux's sysfs, each of which may be absent."""

from __future__ import annotations

import re
from pathlib import Path

from topocomm.topology.inference.cpu_lists import cpus_of


def numbers_in(path: Path) -> set[int]:
    """The CPU list in a file; empty where the file is absent or no list."""
    return cpus_of(text_in(path))


def number_in(path: Path) -> float | None:
    """The number that a file starts with: `16.0 GT/s PCIe` is 16; None where the file is absent or says no number."""
    match = re.match(r"-?\d+(?:\.\d+)?", text_in(path))
    return float(match.group()) if match else None


def text_in(path: Path) -> str:
    """What a file holds, stripped; empty where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:  # absent, or the driver answers EINVAL
        return ""


def entries(folder: Path) -> list[Path]:
    """What is in a folder, `mlx5_2` before `mlx5_10`."""

    def natural(path: Path) -> list[tuple[bool, int, str]]:
        return [
            (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", path.name)
        ]

    try:
        return sorted(folder.iterdir(), key=natural)
    except OSError:
        return []
