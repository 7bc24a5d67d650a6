"""Hold predictions against measured tables.

    python -m tools.evidence --measured DIR [--write docs/results/simulator.md]

Fit the figures of each family of machines on a part of its rows, predict the rest, and predict all by nominal figures
alone; print the errors, or write the page of results with its plots.
"""

from __future__ import annotations

import sys
from pathlib import Path

from topocomm.calibration.error_report import RowError, row_errors
from topocomm.calibration.fit_figures import Fit, fit_tables
from topocomm.command_parser import CommandParser
from topocomm.planning.libraries.library_figures import DEFAULTS

from .gather import Family, Gathered, gather
from .page import Scored, class_lines, figure_lines, goal_lines, worst_lines
from .plots import Panel, svg
from .simulated import simulated_lines, simulated_rows

NOMINAL = Fit(dict(DEFAULTS), (), None, 0)
"""Nominal figures: nothing fitted."""
TEXT_BEGIN, TEXT_END = "<!-- figures begin -->", "<!-- figures end -->"
"""Marks between which `--write` replaces a page's text; what stands around them is written by hand."""


def main() -> int:
    """Fit, predict, print or write."""
    parser = CommandParser(prog="python -m tools.evidence", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measured", type=Path, required=True, metavar="DIR", help="folder of tables as JSON")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write tables between the marks of this page, and plots"
    )
    parser.add_argument("--simulate", action="store_true", help="NCCL's rows by the simulator too: a minute or two")
    parser.add_argument("--no-fit", action="store_true", help="nominal figures only, as for families never seen")
    args = parser.parse_args()
    if not args.measured.is_dir():
        parser.error(f"--measured {args.measured}: no such folder")
    gathered = gather(args.measured)
    for reason in gathered.left_out:
        print(f"left out: {reason}", file=sys.stderr)
    if not gathered.families:
        parser.error(f"--measured {args.measured}: no table that can be used")
    scored = []
    for number, family in enumerate(gathered.families, 1):
        print(f"{number} of {len(gathered.families)}: {family.name}", file=sys.stderr)
        scored.append(score(family, fits=not args.no_fit))
    picture = None if args.write is None else "../pictures/simulator-{}.svg"
    lines = text(gathered, scored, picture=picture)
    if args.simulate:
        rows = [row for own in scored for row in simulated_rows(own)]
        lines += ["## Message by message", "", "NCCL's calls by the simulator:", "", *simulated_lines(rows), ""]
    page = "\n".join(lines)
    if args.write is None:
        print(page)
        return 0
    write(args.write, page, scored)
    return 0


def score(family: Family, *, fits: bool = True) -> Scored:
    """Return a family's rows by a fit on a part of them, and by nominal figures."""
    fit = fit_tables(family.models) if fits else NOMINAL
    rows = row_errors(family.models, fit)
    nominal = row_errors(family.models, NOMINAL)
    if not fits:
        rows = [each._replace(fitted=False) for each in rows]
    return Scored(family, fit, rows, nominal)


def text(gathered: Gathered, scored: list[Scored], *, picture: str | None = None) -> list[str]:
    """Return the lines of the page between its marks."""
    lines = [*goal_lines(scored), ""]
    for own in scored:
        tables, rows = len(own.family.models), len(own.fitted)
        lines += [
            f"## {own.family.name}",
            "",
            f"{own.family.machine}: {tables} tables, {rows} rows, {own.fit.rows} fitted.",
        ]
        if own.fit.has_ll128 is not None:
            lines.append(f"NCCL's LL128 {'is' if own.fit.has_ll128 else 'is not'} in use: so the rows fit better.")
        if picture is not None:
            lines += ["", f"![measured and predicted times of {own.family.name}]({picture.format(own.family.name)})"]
        lines += ["", "Rows that were not fitted:", "", *class_lines(own.rest)]
        lines += ["", "By nominal figures, all rows:", "", *class_lines(own.nominal)]
        lines += ["", "Furthest off, fitted or not:", "", *worst_lines(own.fitted)]
        if own.fit.fitted:
            lines += ["", "What was fitted:", "", *figure_lines(own.fit)]
        lines.append("")
    if gathered.left_out:
        lines += ["## Left out", "", *(f"- {reason}" for reason in gathered.left_out), ""]
    return lines


def panels(errors: list[RowError]) -> list[Panel]:
    """Return a plot for each collective and library, with a series for each number of hosts."""
    found: dict[str, dict[str, list[RowError]]] = {}
    for each in errors:
        table = each.model.table
        where = "host memory" if table.memory == "host" else "devices"
        title = f"{table.collective}, {each.model.library.kind}, {where}"
        series = f"{table.hosts}" + (f", {table.pairs} pairs" if table.pairs else " hosts" if table.hosts == 1 else "")
        found.setdefault(title, {}).setdefault(series, []).append(each)
    return [
        Panel(
            title,
            {name: sorted(own, key=lambda e: e.row.payload_bytes) for name, own in sorted(series.items(), key=_hosts)},
        )
        for title, series in found.items()
    ]


def _hosts(item: tuple[str, list[RowError]]) -> tuple[int, str]:
    return item[1][0].model.table.hosts or 1, item[0]


def write(page: Path, body: str, scored: list[Scored]) -> None:
    """Write the page and a picture of each family beside it."""
    known = page.read_text() if page.exists() else f"# Simulated times and measured ones\n\n{TEXT_BEGIN}\n{TEXT_END}\n"
    before, _, rest = known.partition(TEXT_BEGIN)
    after = rest.partition(TEXT_END)[2]
    page.write_text(f"{before}{TEXT_BEGIN}\n{body}\n{TEXT_END}{after}")
    folder = page.parent.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for own in scored:
        picture = svg(f"measured and predicted: {own.family.name}", panels(own.fitted))
        (folder / f"simulator-{own.family.name}.svg").write_text(picture)


if __name__ == "__main__":
    sys.exit(main())
