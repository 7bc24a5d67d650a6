"""A megabyte that looks like a tool's output is read or refused in time, never searched without end."""

import pytest

from tests.topology import damage
from tests.topology.readers.amd.texts import bus, xgmi_table
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi

METRICS = "LINK METRIC TABLE:\n bdf bit_rate max_bandwidth link_type GPU0\nGPU0 0000:0b:00.0 32 Gb/s 512 Gb/s XGMI\n"
BANDWIDTH = f"NUMA BW TABLE:\n{bus(0)} {bus(1)}\n{bus(0)} "


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (amd_smi, BANDWIDTH + "AMDSMI_STATUS_X - f " * 50_000),
        (amd_smi, bus(0) + "\nHOPS TABLE:" + "\n" * 1_000_000),
        (amd_smi, bus(0) + "\nHOPS TABLE:" + " " * 1_000_000 + "x"),
        (amd_smi_json, '[{"gpu": 0, "weight":' + "[" * 1_000_000),
        (amd_smi_json, '[{"gpu": 0, "weight": 1' + "\n" * 1_000_000),
        (amd_smi_json, '[{"gpu": 0, "weight": 1' + "] " * 500_000),
        (amd_smi_json, "[\n" * 300_000 + '"gpu", "weight": 1'),
        (amd_smi_xgmi, METRICS + " Read " + "1 KB " * 200_000),
        (amd_smi_xgmi, METRICS.replace("32 Gb/s", "1" * 1_000_000)),
        (amd_smi_xgmi, METRICS.replace("32 Gb/s", "32" + " " * 1_000_000)),
        (amd_smi_xgmi, xgmi_table(128, "32 Gb/s", "512 Gb/s", "PCIE", lambda i, j: "1 KB", by_bus_id=False)),
    ],
    ids=range(11),
)
def test_a_megabyte_is_read(reader, text):
    for other in (amd_smi, amd_smi_json, amd_smi_xgmi):
        other.matches(text)
    damage.attempt(reader, text)
