import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from topocomm.errors import TopologyError
from topocomm.topology import recognise
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.readers.plain.topology_json import dumps
from topocomm.topology.recognise import load, read

DATA = Path(__file__).parents[1] / "data/topologies"


def test_the_format_is_recognised_by_content(tmp_path):
    matrix, document = tmp_path / "matrix.json", tmp_path / "document.txt"
    matrix.write_bytes((DATA / "cube-mesh-8.txt").read_bytes())
    document.write_text(dumps(catalog("dgx-a100")))
    assert load(matrix).source == "nvidia-smi topo -m"
    assert load(str(document)) == catalog("dgx-a100")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings_of_copies(tmp_path, encoding):
    text = (DATA / "bridge-pairs-4.txt").read_text() + "\n\u00a0\u00e9\n"
    file = tmp_path / "bridge-pairs-4.txt"
    file.write_bytes(text.encode(encoding))
    assert load(file).devices == load(DATA / "bridge-pairs-4.txt").devices


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_to_its_end(tmp_path):
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=((DATA / "cube-mesh-8.txt").read_bytes(),))
    writer.start()
    assert len(load(pipe).endpoints) == 8
    writer.join()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\t\n", "the file is empty"),
        (bytes(range(256)) * 4, "not a text file"),
        (b"\xff\xfea", "not a text file"),
        (b"hello\nworld\n", "unknown format; looked for output of `nvidia-smi topo -m`"),
        (b"<html><body>GPU0</body></html>", "unknown format"),
        (b"[1, 2]", "unknown format"),
        (b"{}", "'devices' is missing"),
    ],
)
def test_what_is_not_a_topology_is_named_in_one_line(tmp_path, data, message):
    file = tmp_path / "odd.dat"
    file.write_bytes(data)
    with pytest.raises(TopologyError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_formats_say_what_to_do(tmp_path):
    with pytest.raises(TopologyError, match=r"`nvidia-smi topo -m > FILE` or `topocomm inspect --format json"):
        read("hello", "odd.txt")


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(TopologyError, match=r"none\.txt: cannot be read: No such file"):
        load(tmp_path / "none.txt")
    with pytest.raises(TopologyError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(TopologyError, match="cannot be read"):
        load("a\0b")


def test_endless_files_are_not_read_to_the_end(monkeypatch, tmp_path):
    monkeypatch.setattr(recognise, "MAX_BYTES", 2**20)
    file = tmp_path / "long.txt"
    file.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(TopologyError, match="longer than 1 MiB"):
        load(file)


@given(st.binary(max_size=200))
@examples(100)
def test_any_bytes_give_a_topology_or_a_topology_error(tmp_path_factory, data):
    file = tmp_path_factory.mktemp("junk") / "junk"
    file.write_bytes(data)
    with pytest.raises(TopologyError):
        load(file)
