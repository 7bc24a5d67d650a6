"""What every GPU kernel compiles to, for GPUs that need not be there: registers, spills, shared memory, code size.

    python tools/gpu/compile_report.py [--arch sm_90 ...] [--kernel NAME ...] [--every N] [--output FILE.md]

Ends with status 1 where a kernel spills, or takes more shared memory than its GPU has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from decode_configs import decode_configs
from resources import SHARED_BYTES, TARGETS, Config, Resources, compiled

KERNELS: dict[str, Callable[[str], Iterable[Config]]] = {"decode": decode_configs}
"""The configurations of each kernel, for an arch."""

Line = tuple[str, str, str, Resources | str]
"""Arch, kernel, case, and what it takes, or why it does not compile."""


def main() -> int:
    """Prints the report, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth configuration")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Markdown; default: stdout")
    args = parser.parse_args()
    lines = list(measured([(arch, name) for arch in args.arch for name in args.kernel], args.every))
    bad = [line for line in lines if fault(line)]
    text = report(lines, bad)
    if args.output:
        args.output.write_text(text)
    else:
        sys.stdout.write(text)
    for line in bad:
        print(f"{line[0]} {line[1]} ({line[2]}): {fault(line)}", file=sys.stderr)
    return 1 if bad else 0


def measured(jobs: list[tuple[str, str]], every: int) -> Iterator[Line]:
    """The lines of every kernel for every arch, compiled by as many processes as there are cores."""
    work = [(arch, name, number) for arch, name in jobs for number in range(0, len(list(KERNELS[name](arch))), every)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield from pool.map(_line, work, chunksize=4)


def _line(job: tuple[str, str, int]) -> Line:
    arch, name, number = job
    config = list(KERNELS[name](arch))[number]
    try:
        return arch, name, config.what, compiled(config, arch)
    except Exception as error:  # noqa: BLE001 - whatever a compiler says is a line of the report
        words = " ".join(str(error).split())
        return arch, name, config.what, f"{type(error).__name__}: {words[:200]}"


def fault(line: Line) -> str | None:
    """Why a line is not as it must be."""
    arch, _, _, found = line
    if isinstance(found, str):
        return found
    if found.spills:
        return f"spills {found.spills}"
    if found.shared_bytes > SHARED_BYTES[arch]:
        return f"takes {found.shared_bytes} bytes of shared memory, {SHARED_BYTES[arch]} are there"
    return None


def report(lines: list[Line], bad: list[Line]) -> str:
    """All lines as Markdown."""
    import triton

    day = datetime.now(UTC).date().isoformat()
    head = [
        f"# What the GPU kernels compile to, {day}",
        "",
        f"Triton {triton.__version__}, cross-compiled: no kernel of this table ran on these GPUs for it. "
        f"{len(lines)} kernels, {len(bad)} with spills or too much shared memory.",
        "",
        "| GPU | kernel | case | registers | spills | shared bytes | machine code | assembly |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = []
    for arch, name, what, found in lines:
        cells = [found, "", "", "", ""] if isinstance(found, str) else [str(figure) for figure in found]
        rows.append(f"| {arch} | {name} | {what} | {' | '.join(cells)} |")
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
