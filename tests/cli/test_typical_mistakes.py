"""Typical mistakes on the command line end with one line, status 2, and what was meant."""

import gzip

import pytest

from tests.cli.mistakes import MISTAKES
from topocomm import catalog, plan
from topocomm.cli.main import main
from topocomm.topology.readers.plain import topology_json


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    machine, saved = folder / "machine.json", folder / "plan.json"
    machine.write_text(topology_json.dumps(catalog("dgx-h100")))
    plan(catalog("dgx-h100"), payload_bytes=1 << 16).save(saved)
    packed = folder / "machine.json.gz"
    packed.write_bytes(gzip.compress(machine.read_bytes()))
    paths = {"MACHINE": machine, "PLAN": saved, "NEAR": folder / "machin.json", "PACKED": packed, "FOLDER": folder}
    return {name: str(path) for name, path in {**paths, "NOWHERE": folder / "none" / "x"}.items()}


def filled(words, files):
    return [files.get(word, word) for word in words.split()]


@pytest.mark.every_case
@pytest.mark.parametrize(("line", "meant"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_one_line_says_what_to_do(capsys, files, line, meant):
    try:
        status = main(filled(line, files))
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    command = line.split()[0]
    known = command in ("plan", "inspect", "simulate", "order", "bench", "calibrate", "doctor")
    assert captured.err.startswith(f"topocomm {command}: " if known else "topocomm: ")
    if meant is not None:
        assert captured.err.split("; see `")[0].rstrip("\n?").endswith(" ".join(filled(meant, files)))
    else:
        remedies = ("expected", "missing", "after the command", "not allowed with")
        assert any(remedy in captured.err for remedy in remedies)


def test_the_table_is_long_enough_and_most_of_it_has_a_suggestion():
    assert len({line for line, _ in MISTAKES}) == len(MISTAKES) >= 50
    assert sum(meant is not None for _, meant in MISTAKES) >= 40


@pytest.mark.parametrize("line", ["plan --system dgx-h100 --bytes 64K --json", "inspect --input MACHINE"])
def test_what_is_suggested_is_taken(capsys, files, line):
    assert main(filled(line, files)) == 0
    assert capsys.readouterr().err == ""
