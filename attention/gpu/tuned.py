"""Configurations tuned on a card, in a JSON file beside the table; they take precedence over its rules.

TOPOCOMM_TUNED_DIR names another directory for these files: they are read there, and nowhere else.

The file holds `{arch: {key: configuration}}`: arch as `sm_90` or `gfx942`, key as the table names a problem, and the
fields of its configuration in order as a list of integers:

    {"sm_90": {"16 bit, 128 wide, 16 rows, plain": [64, 4, 3]}}

A table (`decode_table`, `prefill_table`) has four things for a tuner, and nothing is tuned but by one:

- `problem_of(...)`: the problem of a call; `problem.arch` and `problem.key` are its place in the file.
- `candidates(problem)`: configurations to time, that of the rules first. Some may spill or not fit a card: a tuner
  leaves out those that Triton refuses (`OutOfResources`) and those whose compiled kernel has `n_spills`.
- `TUNED.trying(configuration)`: a context in which every call takes this one.
- `TUNED.record(arch, {key: configuration})`: writes them into the file, for all calls from then on; others stay.

`tools/gpu/compile_report.py` compiles what the file names, as it does what the rules name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from topocomm import TopocommError

VARIABLE = "TOPOCOMM_TUNED_DIR"


class Tuned:
    """The file of one table, read at the first look; absent is empty.

    Args:
        path: The file, or one of its name in the directory that TOPOCOMM_TUNED_DIR names at that look.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, dict[str, list[int]]] | None = None
        self._tried: Sequence[int] | None = None
        self.version = 0
        """Grows whenever `find` may answer otherwise than before."""

    def find(self, arch: str, key: str) -> Sequence[int] | None:
        """Return the configuration of a problem, or None; the one that is being tried, if one is."""
        if self._tried is not None:
            return self._tried
        return self.known().get(arch, {}).get(key)

    def known(self) -> dict[str, dict[str, list[int]]]:
        """Return all of the file.

        Raises:
            TopocommError: TOPOCOMM_TUNED_DIR names no directory.
        """
        if self._known is None:
            directory = os.environ.get(VARIABLE)
            if directory:
                if not Path(directory).is_dir():
                    raise TopocommError(f"{VARIABLE}={directory}: expected a directory for tables of tune.py")
                self.path = Path(directory) / self.path.name
            self._known = json.loads(self.path.read_text()) if self.path.exists() else {}
        return self._known

    def record(self, arch: str, configurations: Mapping[str, Sequence[int]]) -> None:
        """Write configurations of an arch by key into the file, replacing those of these keys."""
        known = self.known()
        self.version += 1
        known.setdefault(arch, {}).update({key: [int(x) for x in values] for key, values in configurations.items()})
        # a line for each problem, so that changes can be read
        blocks = []
        for name in sorted(known):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(known[name][key])}" for key in sorted(known[name]))
            blocks.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        self.path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")

    @contextmanager
    def trying(self, configuration: Sequence[int]) -> Iterator[None]:
        """Give every problem this configuration inside the context, in all threads."""
        before, self._tried = self._tried, configuration
        self.version += 1
        try:
            yield
        finally:
            self._tried = before
            self.version += 1
