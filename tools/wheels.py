"""Build the sdist and a wheel for every machine, and check what is in them.

    make wheels
    python tools/wheels.py [FOLDER] [--machine x86_64] [--machine aarch64]    # build, auditwheel and ziglang installed

Wheels are built from the sdist, by Zig's C compiler for the oldest glibc that NumPy's wheels still take, and for any
Python from 3.11 on (abi3). A fault in one ends the program with status 1. FOLDER is `dist` if not given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 17)
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Machines, and the numbers by which ELF files name them."""
MOST_BYTES, MOST_INSTALLED = 2_500_000, 7_000_000
SUFFIXES = {".py", ".pyi", ".typed", ".json", ".css", ".html", ".js", ".svg", ".so"}
EXTENSIONS = {"attention/kernels/_native.abi3.so", "topocomm/native/_native.abi3.so"}
LICENCE = "License-Expression: Apache-2.0"


def main() -> int:
    """Build, check and print a line per file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dist"))
    parser.add_argument("--machine", choices=MACHINES, action="append", help="for this machine only (may be repeated)")
    args = parser.parse_args()
    sdist = build_sdist(args.folder)
    print(f"{sdist.stat().st_size:10,} bytes  {sdist}")
    faults = [f"{sdist.name}: {fault}" for fault in sdist_faults(sdist)]
    for machine in args.machine or MACHINES:
        wheel = build_wheel(sdist, machine)
        with zipfile.ZipFile(wheel) as opened:
            installed = sum(info.file_size for info in opened.infolist())
        print(f"{wheel.stat().st_size:10,} bytes  {wheel}  ({installed:,} installed; limit {MOST_BYTES:,})")
        faults += [f"{wheel.name}: {fault}" for fault in (*wheel_faults(wheel, machine), *audit_faults(wheel))]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def build_sdist(folder: Path) -> Path:
    """Build the sdist of this checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT], check=True, stdout=sys.stderr)
    return max(folder.glob("topocomm-*.tar.gz"), key=os.path.getmtime)


def build_wheel(sdist: Path, machine: str) -> Path:
    """Build the wheel of a machine from an sdist, beside it."""
    platform = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    zig = files("ziglang") / "zig"  # not python -m ziglang: pip builds where this environment's packages are not seen
    compiler = f"{zig} cc -target {machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    settings = {"cmake.define.CMAKE_SYSTEM_NAME": "Linux", "cmake.define.CMAKE_SYSTEM_PROCESSOR": machine}
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        sdist.parent,
    ]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "CC": compiler, "_PYTHON_HOST_PLATFORM": platform}
    subprocess.run([*command, sdist], check=True, stdout=sys.stderr, env=environment)
    return max(sdist.parent.glob(f"topocomm-*-{platform}.whl"), key=os.path.getmtime)


def sdist_faults(sdist: Path) -> Iterator[str]:
    """Find what was built and is no source."""
    with tarfile.open(sdist) as opened:
        for name in opened.getnames():
            if Path(name).suffix in (".so", ".pyc", ".whl"):
                yield f"{name} is no source"


def wheel_faults(wheel: Path, machine: str) -> Iterator[str]:
    """Find what does not belong into a wheel, what is missing, and what is too large."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        yield f"{size:,} bytes; expected {MOST_BYTES:,} at most"
    with zipfile.ZipFile(wheel) as opened:
        sizes = {info.filename: info.file_size for info in opened.infolist()}
        information = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
        if sum(sizes.values()) > MOST_INSTALLED:
            yield f"{sum(sizes.values()):,} bytes installed; expected {MOST_INSTALLED:,} at most"
        inside = {name for name in sizes if not name.startswith(information)}
        for name in sorted(inside):
            if name.split("/")[0] not in ("attention", "topocomm") or Path(name).suffix not in SUFFIXES:
                yield f"{name} does not belong into a wheel"
        found = {name for name in inside if name.endswith(".so")}
        if found != EXTENSIONS:
            yield f"extensions {sorted(found)}; expected {sorted(EXTENSIONS)}"
        for name in sorted(found):
            if (made_for := int.from_bytes(opened.read(name)[18:20], "little")) != MACHINES[machine]:
                yield f"{name} is for ELF machine {made_for}; expected {MACHINES[machine]} ({machine})"
        if LICENCE not in opened.read(f"{information}METADATA").decode().splitlines():
            yield f"METADATA has no line {LICENCE!r}"
        for name in (f"{information}licenses/LICENSE", f"{information}sboms/topocomm.cdx.json"):
            if name not in sizes:
                yield f"no {name}"
        yield from _bill_faults(opened, f"{information}sboms/topocomm.cdx.json", found)


def _bill_faults(opened: zipfile.ZipFile, name: str, extensions: set[str]) -> Iterator[str]:
    if name not in opened.namelist():
        return
    listed = {part["name"]: part["hashes"][0]["content"] for part in json.loads(opened.read(name))["components"]}
    if listed != {each: hashlib.sha256(opened.read(each)).hexdigest() for each in extensions}:
        yield f"{name} does not list the extensions with their hashes"


def audit_faults(wheel: Path) -> Iterator[str]:
    """Ask auditwheel for the oldest system that a wheel runs on; a newer one than its name says is a fault."""
    command: list[str | Path] = [sys.executable, "-m", "auditwheel", "show", wheel]
    said = " ".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    tag = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_\w+"', said)
    if tag is None or (int(tag[1]), int(tag[2])) > GLIBC:
        yield f"auditwheel: {said}"


if __name__ == "__main__":
    sys.exit(main())
