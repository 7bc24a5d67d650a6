"""Examples of the reference: each option of each command is in one, and all of them run, in their order."""

import pytest

from tests.tools.pages.examples import lacking, run_example, shown_options
from tools.pages.command_examples import EXAMPLES
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


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_in_an_example_of_its_command(name):
    options = shown_options(f"topocomm.cli.{name}_command", "add_parser")
    assert options and lacking(options, EXAMPLES[f"topocomm {name}"]) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_examples_run_from_top_to_bottom(tmp_path):
    (tmp_path / "all_reduce.log").write_text(NCCL_LOG)
    (tmp_path / "osu_allreduce.txt").write_text(OSU_LOG)
    for line in "\n".join(text for name, text in EXAMPLES.items() if name.startswith("topocomm ")).split("\n"):
        run_example(line, tmp_path)
