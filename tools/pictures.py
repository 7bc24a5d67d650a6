"""Draws the pictures of machines and plans in docs/pictures again: `python -m tools.pictures`."""

from __future__ import annotations

from pathlib import Path

from topocomm.cli.main import main
from topocomm.command_parser import CommandParser

FOLDER = Path(__file__).parents[1] / "docs/pictures"
COMMANDS = {
    "dgx-1": "inspect --system dgx-1-v100",
    "rtx4090-8": "inspect --system rtx4090-pcie-8",
    "mi300x": "inspect --system mi300x-8",
    "dgx-h100-pair": "inspect --system dgx-h100 --hosts 2",
    "gb200-nvl72": "inspect --system gb200-nvl72",
    "plan-dgx-h100-pair": "plan --system dgx-h100 --hosts 2 --operator attention.logsumexp --bytes 4128",
    "plan-sizes": "plan --system dgx-h100 --hosts 2 --sizes 64:64MiB:4",
    "plan-trees": "plan --system dgx-1-v100 --bytes 64MiB --objective throughput",
}
"""Arguments of `topocomm` by picture, without format and file."""


def draw(name: str, folder: Path = FOLDER) -> Path:
    """Write a picture of the documentation to a folder; return its file.

    Raises:
        RuntimeError: The command fails; what it says is on stderr.
    """
    file = folder / f"{name}.svg"
    if main([*COMMANDS[name].split(), "--format", "svg", "--output", str(file)]):
        raise RuntimeError(f"topocomm {COMMANDS[name]} failed")
    return file


if __name__ == "__main__":
    CommandParser(prog="python -m tools.pictures", description=__doc__.splitlines()[0]).parse_args()
    for name in COMMANDS:
        print(draw(name))
