"""What `topocomm simulate` turns away."""

import re

import pytest

from tests.cli.command_line import refuses, runs
from topocomm import catalog, plan
from topocomm.topology.readers.plain import topology_json

H100 = ("--system", "dgx-h100")


run = runs("simulate")
refused = refuses("simulate")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            (*H100, "--bytes", "1KiB", "--algorithm", "nope"),
            "algorithm 'nope': expected one of planned, switch-sum, ring",
        ),
        ((*H100, "--bytes", "1KiB", "--compare", "planned,nope"), "algorithm 'nope': expected one of"),
        ((*H100, "--bytes", "1KiB", "--compare", ","), "--compare: expected names of"),
        (
            (*H100, "--bytes", "1KiB", "--compare", "ring", "--algorithm", "ring"),
            "--algorithm does not go with --compare",
        ),
        ((*H100, "--bytes", "1KiB", "--compare", "ring", "--trace", "x"), "--trace does not go with --compare"),
        ((*H100, "--bytes", "1KiB", "--what-if", "nvlnk=5"), "kinds are nvlink; near it: nvlink"),
        ((*H100, "--bytes", "1KiB", "--what-if", "nvlink=0"), "expected LINK=GBPS, GB/s above 0"),
        ((*H100, "--bytes", "1KiB", "--ports", "0"), "--ports 0: expected a number of at least 1"),
        ((*H100, "--bytes", "1KiB", "--launch-us", "-1"), "--launch-us -1.0: expected a number of at least 0"),
        ((*H100, "--bytes", "1KiB", "--fold-gb-per-s", "nan"), "--fold-gb-per-s nan: expected a number"),
        (
            (*H100, "--bytes", "8", "--algorithm", "ring", "--ports", "2"),
            "--ports goes with planned schedules",
        ),
        ((*H100, "--sweep", "bytes=8", "--compare", "ring", "--protocols", "nccl"), "--protocols goes with planned"),
        ((*H100, "--sweep", "sizes=1"), "--sweep 'sizes=1': expected bytes=A:B:FACTOR"),
        ((*H100, "--bytes", "8", "--sweep", "bytes=1"), "--bytes does not go with --sweep bytes"),
        ((*H100, "--hosts", "2", "--bytes", "8", "--sweep", "hosts=1"), "--sweep hosts=... goes with --system NAME"),
        ((*H100, "--bytes", "8", "--sweep", "hosts=1", "--trace", "x"), "--sweep does not go with --trace"),
    ],
)
def test_what_is_turned_away(capsys, words, why):
    assert why in refused(capsys, *words)


def test_files_that_do_not_fit_are_named(capsys, tmp_path):
    saved, machine = tmp_path / "plan.json", tmp_path / "machine.json"
    plan(catalog("dgx-h100"), payload_bytes=4096).save(saved)
    assert f"{saved}: made for another topology" in refused(capsys, "--system", "dgx-a100", "--plan", str(saved))
    assert "--bytes does not go with --plan" in refused(capsys, *H100, "--plan", str(saved), "--bytes", "8")
    saved.write_text(saved.read_text()[:500])
    assert f"{saved}: not JSON: Unterminated string starting at: line 1 column" in refused(
        capsys, *H100, "--plan", str(saved)
    )
    text = topology_json.dumps(catalog("dgx-h100"))
    machine.write_text(text.replace("450.0", "0.0", 1))
    said = refused(capsys, "--input", str(machine), "--bytes", "8")
    assert str(machine) in said
    assert "links[0].gb_per_s: expected a positive finite number" in said
    machine.write_text(text[: len(text) // 2])
    assert re.search(rf"{re.escape(str(machine))}:\d+", refused(capsys, "--input", str(machine), "--bytes", "8"))
