"""The figures of the Tree Attention paper again.

    python -m tools.paper [latency ratio volume memory llama lab] [--write] [--measure]

Print the tables of all figures, or of those named: two to four minutes in all. `--write` puts them into
docs/results/paper.md and their pictures into docs/pictures, for which matplotlib must be installed (`pip install
--group paper`). `--measure` measures peak memory, by mpirun, and the lab's hosts again before that, of the figures that
are made; the last times lie in tools/paper/measured_memory.json and measured_lab.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from topocomm import TopocommError
from topocomm.command_parser import CommandParser

from . import lab, latency, llama, memory, ratio, volume
from .drawing import panels
from .page import placed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/results/paper.md"
PICTURES = ROOT / "docs/pictures"


class Figure(NamedTuple):
    """How a figure's data are made, and what is made of them."""

    data: Callable[[], Any]
    table: Callable[[Any], list[str]]
    draw: Callable[[Any], str]
    title: str


FIGURES = {
    "latency": Figure(latency.simulate_all, latency.table_lines, latency.draw, latency.TITLE),
    "ratio": Figure(ratio.simulate_all, ratio.table_lines, ratio.draw, ratio.TITLE),
    "volume": Figure(volume.count_all, volume.table_lines, volume.draw, volume.TITLE),
    "memory": Figure(memory.load, memory.table_lines, memory.draw, memory.TITLE),
    "lab": Figure(lab.load, lab.table_lines, lab.draw, lab.TITLE),
    "llama": Figure(llama.simulate_all, llama.table_lines, llama.draw, llama.TITLE),
}


def main(arguments: list[str] | None = None) -> int:
    """Make the figures that were named."""
    words = __doc__.splitlines()[0] if __doc__ else None
    parser = CommandParser(prog="python -m tools.paper", description=words)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)}; default: all")
    parser.add_argument("--write", action="store_true", help="write docs/results/paper.md and docs/pictures")
    parser.add_argument("--measure", action="store_true", help="measure memory and the lab again, under mpirun")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.figures if name not in FIGURES]
    if unknown:
        parser.error(f"figure {unknown[0]!r}: expected one of {', '.join(FIGURES)}")
    try:
        if args.write:
            panels(1, 1, 1, 1)  # says at once, not after minutes, that matplotlib is missing
        names = args.figures or list(FIGURES)
        for name, of in (("memory", memory), ("lab", lab)):
            if args.measure and name in names:
                of.MEASURED.write_text(of.measure())
        for name in names:
            _make(name, write=args.write)
    except TopocommError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _make(name: str, *, write: bool) -> None:
    figure = FIGURES[name]
    print(f"{name}: {figure.title}", file=sys.stderr)
    data = figure.data()
    lines = figure.table(data)
    if not write:
        print("\n".join(lines), end="\n\n")
        return
    picture = PICTURES / f"paper-{name}.svg"
    page = placed(PAGE.read_text(), name, [f"![{figure.title}](../pictures/{picture.name})", "", *lines])
    picture.write_text(figure.draw(data))
    PAGE.write_text(page)


if __name__ == "__main__":
    sys.exit(main())
