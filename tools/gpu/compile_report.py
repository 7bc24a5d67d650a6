"""Compile report of all GPU kernels, cross-compiled: registers, spills, shared memory, code size.

    python tools/gpu/compile_report.py [--arch sm_90 ...] [--kernel NAME ...] [--every N] [--output FILE.md]

A file configs/NAME_configs.py, with a function NAME_configs(arch) of `Config`s, adds the kernel NAME. What has
been compiled before comes from Triton's cache. Ends with status 1 where a kernel spills, or takes more shared memory
than its GPU has.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from configs.resources import SHARED_BYTES, TARGETS, Config, Resources, compiled

NAMES = sorted(path.stem.removesuffix("_configs") for path in Path(__file__).parent.glob("configs/*_configs.py"))
"""The kernels that have configurations."""
PROGRESS_S = 20

Line = tuple[str, str, str, Resources | str]
"""(arch, kernel, case, resources or compile error)."""


def main() -> int:
    """Print the report, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernel", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth configuration")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Markdown; default: stdout")
    args = parser.parse_args()
    work = [
        (arch, name, number)
        for arch in args.arch
        for name in args.kernel
        for number in range(0, len(configs(name, arch)), args.every)
    ]
    lines = list(measured(work))
    bad = [line for line in lines if fault(line)]
    text = report(lines, bad)
    if args.output:
        args.output.write_text(text)
    else:
        sys.stdout.write(text)
    for line in bad:
        print(f"{line[0]} {line[1]} ({line[2]}): {fault(line)}", file=sys.stderr)
    return 1 if bad else 0


def configs(name: str, arch: str) -> list[Config]:
    """All configurations of a kernel for an arch."""
    return list(getattr(import_module(f"configs.{name}_configs"), f"{name}_configs")(arch))


def measured(work: list[tuple[str, str, int]]) -> Iterator[Line]:
    """The lines of (arch, kernel, number of configuration), by as many processes as there are cores."""
    began = told = time.monotonic()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done, line in enumerate(pool.map(_line, work, chunksize=4), 1):
            yield line
            now = time.monotonic()
            if now - told > PROGRESS_S:
                told = now
                words = (
                    f"{done} of {len(work)} compiled in {now - began:.0f} s; the last: {line[0]} {line[1]}, {line[2]}"
                )
                print(words, file=sys.stderr, flush=True)


def _line(job: tuple[str, str, int]) -> Line:
    arch, name, number = job
    config = configs(name, arch)[number]
    try:
        return arch, name, config.what, compiled(config, arch)
    except Exception as error:  # noqa: BLE001 - whatever a compiler says is a line of the report
        words = " ".join(str(error).split())
        return arch, name, config.what, f"{type(error).__name__}: {words[:200]}"


def fault(line: Line) -> str | None:
    """Return the fault of a line, if any."""
    arch, _, _, found = line
    if isinstance(found, str):
        return found
    if found.spills:
        return f"spills {found.spills}"
    if found.shared_bytes > SHARED_BYTES[arch]:
        return f"takes {found.shared_bytes} bytes of shared memory, {SHARED_BYTES[arch]} are there"
    return None


MEANING = """\
It proves that every kernel compiles for these GPUs with the tiles that its table chooses, that no register goes to
memory (NVIDIA: the stack of the machine code that Triton's own assembler made; AMD: the private segment; both in bytes)
and that shared memory fits a program: {limits}.
On AMD registers that do not fit may go to other registers, scalar ones to lanes of vector registers and vector ones to
accumulation registers. These moves are counted on their own, and are no fault.

It does not prove that results are right (tests in Triton's interpreter compare them with float64), nor how fast
anything is. Each problem of a table in bfloat16 is compiled with all features of its form at once; float32, float16, 8
bits, head dims and heads are examples; arguments are taken to be aligned. Another version of Triton or of an assembler
may need other registers.
"""


def report(lines: list[Line], bad: list[Line]) -> str:
    """All lines as Markdown: what they mean, the most of each kernel and GPU, then every case."""
    import triton

    day = datetime.now(UTC).date().isoformat()
    limits = ", ".join(f"{arch} {size >> 10} KiB" for arch, size in SHARED_BYTES.items())
    head = [
        f"# What the GPU kernels compile to, {day}",
        "",
        f"`python tools/gpu/compile_report.py`, Triton {triton.__version__}, cross-compiled: no kernel of this table "
        f"ran on these GPUs for it. {len(lines)} kernels, {len(bad)} with spills or too much shared memory.",
        "",
        MEANING.format(limits=limits),
        "| GPU | kernel | cases | most registers | spills | most moves | most shared bytes |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *_summary(lines),
        "",
        "| GPU | kernel | case: tile | registers | spills | moves | shared bytes | machine code | assembly |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = []
    for arch, name, what, found in lines:
        cells = [found, *[""] * 5] if isinstance(found, str) else [str(figure) for figure in found]
        rows.append(f"| {arch} | {name} | {what} | {' | '.join(cells)} |")
    return "\n".join([*head, *rows, ""])


def _summary(lines: list[Line]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Resources]] = {}
    for arch, name, _, found in lines:
        groups.setdefault((arch, name), []).extend([] if isinstance(found, str) else [found])
    for (arch, name), known in groups.items():
        if known:
            most = Resources(*(max(figures) for figures in zip(*known, strict=True)))
            cells = len(known), most.registers, most.spills, most.moved, most.shared_bytes
            yield f"| {arch} | {name} | {' | '.join(str(x) for x in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
