"""Examples of the reference: each option of each command is in one, and all of them run, in their order."""

import argparse
import os
import subprocess
from importlib import import_module

import pytest

from tools.pages.command_examples import EXAMPLES
from tools.pages.reference_text import is_shown
from topocomm.cli.main import COMMANDS

RANKS = "".join(
    f"#  Rank {rank} Group 0 Pid {90 + rank} on node-a device {rank} [0x06] NVIDIA H100\n" for rank in range(8)
)
NCCL_LOG = "# Collective test starting: all_reduce_perf\n# Using devices\n" + RANKS
NCCL_LOG += "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
for power in range(3, 14):
    time_us = 20 + 4**power / 2e5
    columns = f"{time_us:.2f} {4**power / time_us / 1e3:.2f} {1.75 * 4**power / time_us / 1e3:.2f} 0"
    NCCL_LOG += f"{4**power} {4 ** (power - 1)} float sum -1 {columns} {columns}\n"
NCCL_LOG += "# Out of bounds values : 0 OK\n"
OSU_LOG = "# OSU MPI-CUDA Allreduce Latency Test v5.7\n# Size       Avg Latency(us)\n"
OSU_LOG += "".join(f"{4**power} {24 + 4**power / 1e4:.2f}\n" for power in range(1, 11))


def shown_options(name):
    """The options of a command that its help shows, each as its names."""
    subparsers = argparse.ArgumentParser(prog="topocomm").add_subparsers()
    import_module(f"topocomm.cli.{name}_command").add_parser(subparsers)
    return [action.option_strings for action in subparsers.choices[name]._actions if is_shown(action)]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_in_an_example_of_its_command(name):
    words = set(EXAMPLES[f"topocomm {name}"].split())
    assert [names for names in shown_options(name) if names and not words & set(names)] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_examples_run_from_top_to_bottom(tmp_path):
    (tmp_path / "all_reduce.log").write_text(NCCL_LOG)
    (tmp_path / "osu_allreduce.txt").write_text(OSU_LOG)
    for line in "\n".join(text for name, text in EXAMPLES.items() if name.startswith("topocomm ")).split("\n"):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**os.environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr[-1000:]}"
