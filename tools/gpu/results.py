"""Output of the programs of this folder: JSON and results.md, written as they go.

Every program has a part of its own, and leaves the others as they are. A part that has not ended says so. The programs
of one call of run.sh share results-CALL.json, one that is run alone writes results.json; results.md is made of all such
files that are in the folder, from whichever machine they came.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.targets import HEAD, UNMEASURED, Goal, rows
from harness.turns import Limit

MARKDOWN = "results.md"
CALL = "RUN_CALL"
"""The variable by which run.sh tells its programs which call they are of."""
TABLES = {"rules": "by the rules", "tuned": "with the tables just tuned"}
TUNED_DIR = "TOPOCOMM_TUNED_DIR"
LONGEST_START_S = 60.0
"""No program takes longer to start: a process that is older by the system's clocks has wrong clocks, or began anew."""


class Results:
    """The results of one program.

    Args:
        folder: Where the files are.
        part: The program's name.
        title: What it is called in the document.
        tables: By which tables the kernels are cut, of `TABLES`; None: by those of the package, or it does not matter.
        goes_on: Whether what is there of this part stays, since the program goes on with it in another process.
    """

    def __init__(
        self, folder: Path, part: str, title: str, *, tables: str | None = None, goes_on: bool = False
    ) -> None:
        self.folder = folder
        self._name = part
        self._path = folder / json_name()
        self._part: dict[str, Any] = {"title": title, "began": datetime.now(UTC).isoformat(timespec="seconds")}
        self._part |= {"tables": tables, "ended": False, "checks": [], "blocks": [], "data": {}}
        before = _load(self._path).get(part)
        if goes_on and before is not None:
            self._part = before
        self.save()

    def note(self, text: str) -> None:
        """Add a paragraph."""
        print(text, flush=True)
        self._part["blocks"].append({"text": text})
        self.save()

    def table(
        self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]], note: str = "", *, said: bool = True
    ) -> None:
        """A table, in the place of one of the same title; printed too unless it is not to be said yet."""
        cells = [[str(cell) for cell in row] for row in rows]
        if said:
            print(f"\n{title}", note, _aligned([list(head), *cells]), sep="\n", flush=True)
        block = {"title": title, "text": note, "head": list(head), "rows": cells}
        blocks = self._part["blocks"]
        titles = [one.get("title") for one in blocks]
        place = titles.index(title) if title in titles else len(blocks)
        blocks[place : place + 1] = [block]
        self.save()

    def data(self, name: str, value: Any) -> None:
        """Add figures for programs to read."""
        self._part["data"][name] = value
        self.save()

    def goals(self, goals: Sequence[Goal], note: str = "", *, said: bool = False) -> None:
        """What was to be reached, so far: a table, and figures for the table of targets."""
        self._part["data"]["goals"] = [list(goal) for goal in goals]
        self.table(
            "What was to be reached", ["what", "target", "reached", "met"], [x.cells for x in goals], note, said=said
        )

    def goals_so_far(self) -> list[Goal]:
        """Those of this part that are there, where it goes on in another process."""
        return [Goal(*cells) for cells in self._part["data"].get("goals", ())]

    def check(self, name: str, wrong: str | None) -> bool:
        """Record a check and its fault; None: passed."""
        self.checks([(name, wrong)])
        return wrong is None

    def checks(self, found: Sequence[tuple[str, str | None]]) -> None:
        """Several, written at once: each writing takes as long as there is much."""
        for name, wrong in found:
            if wrong is not None:
                print(f"FAILED {name}: {wrong}", flush=True)
            self._part["checks"].append({"name": name, "wrong": wrong})
        self.save()

    @contextmanager
    def guarded(self, name: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Whatever goes wrong inside is a check that failed, and the program goes on; but these errors pass."""
        try:
            yield
        except but:
            raise
        except Exception as error:  # noqa: BLE001 - one failing piece must not stop the others
            traceback.print_exc()
            self.check(name, f"{type(error).__name__}: {first_line(error)}")

    def end(self) -> int:
        """The part is complete; the exit status."""
        self._part["ended"] = True
        self.save()
        return 1 if any(check["wrong"] for check in self._part["checks"]) else 0

    def save(self) -> None:
        """Write the program's file, and the document of all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _replace(self._path, json.dumps({**_load(self._path), self._name: self._part}, indent=1) + "\n")
        write_document(self.folder)


def json_name() -> str:
    """The file of the programs of this call."""
    call = os.environ.get(CALL)
    return f"results-{call}.json" if call else "results.json"


def read(folder: Path) -> dict[str, Any]:
    """All parts that are there, in the order of their files; of one that is in several files the latest."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("results*.json")):
        for name, part in _load(path).items():
            if name not in found or part["began"] >= found[name]["began"]:
                found[name] = part
    return found


def _load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_document(folder: Path) -> None:
    """Write the document of what is in a folder."""
    _replace(folder / MARKDOWN, document(read(folder)))


def document(parts: Mapping[str, Any]) -> str:
    """All parts as Markdown: what was to be reached first."""
    cards = {part["data"]["card"]: None for part in parts.values() if "card" in part["data"]}
    days = sorted(part["began"][:10] for part in parts.values())
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "nothing was run"
    lines = [f"# Figures of one {' and one '.join(cards) or 'GPU'}, {when}", ""]
    if len(cards) > 1:
        lines += ["Calls ran on different cards: which one, stands in the facts of each call.", ""]
    failed = failures(parts)
    checks = sum(len(part["checks"]) for part in parts.values())
    lines += [f"{checks} checks, {len(failed)} failed.", "", *(f"- {words}" for words in failed)]
    lines += ["", "## What is to be reached", "", *_markdown(HEAD, rows(parts)), ""]
    for part in parts.values():
        lines += ["", f"## {part['title']}", ""]
        for block in part["blocks"]:
            lines += [f"### {block['title']}", ""] if "title" in block else []
            lines += [block["text"], ""] if block["text"] else []
            if "head" in block:
                lines += [*_markdown(block["head"], block["rows"]), ""]
        if not part["ended"]:
            lines += ["This part did not come to its end.", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def failures(parts: Mapping[str, Any], wanted: Sequence[str] = ()) -> list[str]:
    """What failed, or never came to its end, in words; of the wanted parts also what is missing."""
    found = [f"{name}: did not begin" for name in wanted if name not in parts]
    for name, part in parts.items():
        found += [f"{name}, {check['name']}: {check['wrong']}" for check in part["checks"] if check["wrong"]]
        found += [] if part["ended"] else [f"{name}: did not come to its end"]
    return found


def first_line(error: BaseException, width: int = 160) -> str:
    """The first words of an error that has any."""
    return " ".join(str(error).split())[:width] or type(error).__name__


def program(part: str, title: str, work: Callable[[Results, Limit, argparse.Namespace], None], **more: Any) -> int:
    """The main function of a program: its arguments, its part, and its exit status.

    Args:
        part: The program's name.
        title: What its part is called.
        work: Does it, within a limit.
        more: Further options by name, the arguments of `add_argument`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=Path, default=Path(os.environ.get("OUT", "gpu-results")))
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="what it may take, its start included (default 120)"
    )
    parser.add_argument("--tables", choices=TABLES, help="cut kernels by the rules alone, or by the tables in OUT")
    parser.add_argument("--goes-on", action="store_true", help="add to this part of OUT")
    for name, options in more.items():
        parser.add_argument(f"--{name}", **options)
    args = parser.parse_args()
    suffix, words = (f" {args.tables}", f", {TABLES[args.tables]}") if args.tables else ("", "")
    results = Results(args.out, part + suffix, title + words, tables=TABLES.get(args.tables), goes_on=args.goes_on)
    if args.tables == "tuned" and not list(args.out.glob("*_table.json")):
        results.note(f"No table of tuned configurations is in {args.out}: {UNMEASURED}.")
        return results.end()
    with results.guarded(part), tempfile.TemporaryDirectory() as empty:
        if args.tables:
            os.environ[TUNED_DIR] = str(args.out if args.tables == "tuned" else empty)
        work(results, Limit(args.seconds - age_s()), args)
    return results.end()


def age_s() -> float:
    """How long this process is there: imports take seconds."""
    started = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # in ticks from the boot on
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return min(max(age, 0.0), LONGEST_START_S)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def _replace(path: Path, text: str) -> None:
    """Write at once: who reads sees all of it or what was there before."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def main() -> int:
    """`python tools/gpu/results.py FOLDER [PART ...]`: write results.md anew, and say what failed.

    Of these parts, or of all that are there; status 1 if anything did.
    """
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    write_document(folder)
    parts = read(folder)
    failed = failures({name: part for name, part in parts.items() if not wanted or name in wanted}, wanted)
    print("\n".join([f"{len(failed)} failures; {folder / MARKDOWN}", *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
