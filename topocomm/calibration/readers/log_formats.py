"""Which reader fits a log: recognised by its content."""

from __future__ import annotations

from topocomm.calibration.measured_table import MeasuredTable
from topocomm.calibration.readers import mpibench, nccl_tests_json, nccl_tests_text, osu, table_json
from topocomm.errors import TopologyError
from topocomm.topology.recognise import load_text

FORMATS = "nccl-tests or rccl-tests (text, JSON), OSU micro-benchmarks, mpiBench, or JSON with machine and rows"


def read_log(text: str, source: str, *, ranks: int | None = None) -> tuple[MeasuredTable, ...]:
    """Return the tables of a log of any known benchmark.

    Args:
        text: The log.
        source: Name of the file, for messages.
        ranks: Number of ranks, for logs that do not say it.

    Raises:
        TopologyError: No reader knows the format, or the log is cut off or contradicts itself.
    """
    if table_json.matches(text):
        return table_json.read(text, source)
    if nccl_tests_json.matches(text):
        return nccl_tests_json.read(text, source)
    if nccl_tests_text.matches(text):
        return nccl_tests_text.read(text, source)
    if osu.matches(text):
        return osu.read(text, source, ranks=ranks)
    if mpibench.matches(text):
        return mpibench.read(text, source)
    raise TopologyError(f"{source}: line 1: unknown format; expected {FORMATS}")


def load_log(path: str, *, ranks: int | None = None) -> tuple[MeasuredTable, ...]:
    """Read a file and return its tables (`read_log`).

    Raises:
        TopologyError: As `read_log`, or the file cannot be read.
    """
    return read_log(load_text(path), path, ranks=ranks)
