"""Files about labs: who owns each, and the processes that hold its hosts; and what removes those of dead owners."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .namespaces import LabError, end

PREFIX = "topocomm-netlab-"
FILE = "lab.json"


@dataclass(frozen=True)
class Record:
    """One lab.

    Attributes:
        directory: Folder of its files; its name has the prefix and the owner's process id.
        owner: Process id and start time of its owner.
        holders: By name, process id and start time of what holds the namespaces of a host, switch or launcher.
        topology: Path of its topology.
    """

    directory: str
    owner: tuple[int, int]
    holders: dict[str, tuple[int, int]]
    topology: str

    def save(self) -> None:
        """Write the file, whole or not at all."""
        path = Path(self.directory, FILE)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)))
        part.rename(path)

    @property
    def owner_is_alive(self) -> bool:
        """Whether the process that owns the lab runs."""
        return is_running(*self.owner)


def identity(process: int) -> tuple[int, int]:
    """Return process id and start time in ticks since boot: together they name one process; (id, 0) if it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return process, 0
    return process, int(text.rpartition(")")[2].split()[19])


def is_running(process: int, started: int) -> bool:
    """Return whether this very process runs, and no zombie and no later one of its number."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(words[19]) == started and words[0] not in "ZX"


def new_directory() -> Path:
    """Make the folder of a new lab of this process."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def records() -> Iterator[Record]:
    """Yield the labs of this machine's folder for temporary files, dead owners' too."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{FILE}")):
        try:
            data = json.loads(path.read_text())
            holders = {name: (int(pid), int(start)) for name, (pid, start) in data["holders"].items()}
            yield Record(str(path.parent), (int(data["owner"][0]), int(data["owner"][1])), holders, data["topology"])
        except (OSError, ValueError, KeyError, TypeError):  # removed meanwhile, or cut off
            continue


def find(owner: int | None = None) -> Record:
    """Return the lab of an owner, or the only one that runs.

    Raises:
        LabError: There is none, or there are several.
    """
    alive = [record for record in records() if record.owner_is_alive and owner in (None, record.owner[0])]
    if len(alive) != 1:
        which = "" if owner is None else f" of process {owner}"
        owners = ", ".join(str(record.owner[0]) for record in alive)
        raise LabError(
            f"no lab{which} runs; `python -m tools.netlab up TOPOLOGY` makes one"
            if not alive
            else f"{len(alive)} labs run, of processes {owners}: say which by --lab PID"
        )
    return alive[0]


def clean() -> list[str]:
    """End what dead owners left and remove their folders; return the folders' names."""
    removed = []
    for record in list(records()):
        if not record.owner_is_alive:
            for process, started in record.holders.values():
                if is_running(process, started):
                    end(process)
            shutil.rmtree(record.directory, ignore_errors=True)
            removed.append(Path(record.directory).name)
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if not (path / FILE).exists() and owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed
