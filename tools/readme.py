"""Run the README's command blocks in order, from the repository root, up to the first failure.

    python tools/readme.py [--skip COMMAND ...]

A line of a block that equals a skipped command is left out (CI has run `make test` by then). A `text` block right after
a command block must be that block's output. A `python` block whose paragraph links a file must be in that file.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600


class Block(NamedTuple):
    """A fenced block: language, text, and the prose before it."""

    kind: str
    text: str
    before: str


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text in order."""
    found = []
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.append(Block(match[1], match[2], text[end : match.start()]))
        end = match.end()
    return found


def check_code(block: Block) -> None:
    """Check that the code shown is in the file linked above it."""
    linked = re.findall(r"\]\(([\w/]+\.py)\)", block.before)
    if linked and block.text not in (ROOT / linked[-1]).read_text():
        sys.exit(f"README.md: the code below the link to {linked[-1]} is not in that file")


def run(block: Block, skip: list[str]) -> str:
    """Run a command block and return its standard output."""
    lines = [line for line in block.text.splitlines() if line.split("#")[0].strip() not in skip]
    script = "\n".join(lines)
    print(f"$ {script}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(f"README.md: status {done.returncode} of: {script}")
    print(f"({time.monotonic() - began:.0f} s)\n", flush=True)
    return done.stdout


def main() -> None:
    """Check and run all blocks."""
    parser = argparse.ArgumentParser(description="Run every command block of the README.")
    parser.add_argument("--skip", action="append", default=[], metavar="COMMAND")
    skip = parser.parse_args().skip
    printed = ""
    for block in blocks((ROOT / "README.md").read_text()):
        if block.kind == "sh":
            printed = run(block, skip)
        elif block.kind == "text" and block.text != printed:
            sys.exit(f"README.md: shows\n{block.text}where its commands print\n{printed}")
        elif block.kind == "python":
            check_code(block)


if __name__ == "__main__":
    main()
