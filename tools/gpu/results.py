"""What the programs of this folder leave in their output folder: results.json and results.md, written as they go.

Every program has a part of its own in both, and leaves the others as they are. A part that has not ended says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turns import Limit

JSON, MARKDOWN = "results.json", "results.md"
UNMEASURED = "not yet measured"


class Results:
    """The part of one program.

    Args:
        folder: Where the files are.
        part: The program's name.
        title: What it is called in the document.
    """

    def __init__(self, folder: Path, part: str, title: str) -> None:
        self.folder = folder
        self._part: dict[str, Any] = {"title": title, "ended": False, "checks": [], "blocks": [], "data": {}}
        self._name = part
        self.save()

    def note(self, text: str) -> None:
        """A paragraph."""
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
        """Figures for programs."""
        self._part["data"][name] = value
        self.save()

    def check(self, name: str, wrong: str | None) -> bool:
        """A check, and what is wrong; None: nothing."""
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
    def guarded(self, name: str) -> Iterator[None]:
        """Whatever goes wrong inside is a check that failed, and the program goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one failing piece must not stop the others
            traceback.print_exc()
            self.check(name, f"{type(error).__name__}: {first_line(error)}")

    def end(self) -> int:
        """The part is complete; the exit status."""
        self._part["ended"] = True
        self.save()
        return 1 if any(check["wrong"] for check in self._part["checks"]) else 0

    def save(self) -> None:
        """Write both files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts = read(self.folder)
        parts[self._name] = self._part
        _replace(self.folder / JSON, json.dumps(parts, indent=1) + "\n")
        _replace(self.folder / MARKDOWN, document(parts))


def read(folder: Path) -> dict[str, Any]:
    """All parts that are there."""
    path = folder / JSON
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def document(parts: Mapping[str, Any]) -> str:
    """All parts as Markdown."""
    card = parts.get("facts", {}).get("data", {}).get("card", "a GPU")
    day = datetime.now(UTC).date().isoformat()
    lines = [f"# Figures of one {card}, {day}", ""]
    failed = failures(parts)
    checks = sum(len(part["checks"]) for part in parts.values())
    lines += [f"{checks} checks, {len(failed)} failed.", "", *(f"- {words}" for words in failed)]
    for part in parts.values():
        lines += ["", f"## {part['title']}", ""]
        for block in part["blocks"]:
            lines += [f"### {block['title']}", ""] if "title" in block else []
            lines += [block["text"], ""] if block["text"] else []
            if "head" in block:
                rows = [block["head"], ["---"] * len(block["head"]), *block["rows"]]
                lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
        if not part["ended"]:
            lines += ["This part did not come to its end.", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


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
    for name, options in more.items():
        parser.add_argument(f"--{name}", **options)
    args = parser.parse_args()
    results = Results(args.out, part, title)
    with results.guarded(part):
        work(results, Limit(args.seconds - age_s()), args)
    return results.end()


def age_s() -> float:
    """How long this process is there: imports take seconds."""
    started = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # in ticks from the boot on
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def _replace(path: Path, text: str) -> None:
    """Write at once: who reads sees all of it or what was there before."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def main() -> int:
    """`python tools/gpu/results.py FOLDER PART ...`: what failed of these parts; status 1 if anything did."""
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    parts = read(folder)
    failed = failures(parts, wanted)
    print("\n".join([f"{len(failed)} failures; {folder / MARKDOWN}", *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
