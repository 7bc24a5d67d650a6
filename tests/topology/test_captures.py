"""The captures of our own making: each is known by its reader, read, and kept by topology JSON."""

from pathlib import Path

import pytest

from topocomm.topology import recognise
from topocomm.topology.readers.plain import topology_json

FOLDER = Path(__file__).parents[1] / "data/captures"
CAPTURES = sorted(path for path in FOLDER.glob("*/*") if path.is_file())


def test_every_reader_has_one():
    named = {reader.__name__.rpartition(".")[2] for reader in recognise.readers()} - {"nvidia_smi", "topology_json"}
    assert {path.parent.name for path in CAPTURES} == named


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_is_known_and_read(path):
    text = path.read_text()
    reader = recognise.reader_for(text)
    assert reader is not None and reader.__name__.endswith(f".{path.parent.name}")
    topology = recognise.load(path)
    assert any(device.kind == "gpu" for device in topology.devices)
    assert topology_json.read(topology_json.dumps(topology), "again") == topology
