"""What is proposed to run next works for the machine that is shown."""

import shlex
from pathlib import Path

import pytest

from tests.machines import hosts
from topocomm.cli.main import main
from topocomm.cli.terminal.proposal import largest_piece
from topocomm.topology.merge.degradation import without
from topocomm.topology.readers.plain import topology_json

CAPTURES = Path(__file__).parents[2] / "data/captures"
P2P = CAPTURES / "nvidia_p2p/1.txt"


def proposed(capsys, *words):
    assert main(["inspect", *words]) == 0
    out = capsys.readouterr().out
    return [line.removeprefix("Next: ").strip() for line in out[out.index("\nNext: ") + 1 :].splitlines()]


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_plan_is_proposed_where_one_can_be_made_and_else_the_capture_that_is_missing(capsys, path):
    *_, last = proposed(capsys, "--input", str(path))
    words = shlex.split(last)[1:]
    if words[0] == "plan":
        assert main(words) == 0
        return
    assert words == ["inspect", "--input", str(path), "links.txt"]
    assert main(["plan", "--input", str(path), "--bytes", "64KiB"]) == 2
    assert "pieces" in capsys.readouterr().err


def test_the_capture_that_is_missing_makes_a_plan_possible(capsys, tmp_path, monkeypatch):
    first, second = proposed(capsys, "--input", str(P2P))[-2:]
    assert first == "nvidia-smi topo -m > links.txt"
    monkeypatch.chdir(tmp_path)
    links = (CAPTURES.parent / "topologies/nvswitch-16.txt").read_text()
    Path("links.txt").write_text(links)
    assert main(["plan", *shlex.split(second)[2:], "--bytes", "64KiB"]) == 0


def test_what_doctor_finds_is_shown_and_doctor_proposed(capsys):
    assert main(["inspect", "--input", str(P2P)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "warn P2P: 112 pairs without P2P: CNS, the chipset does not support it: GPU0-GPU2" in shown
    assert proposed(capsys, "--input", str(P2P))[0] == f"topocomm doctor --input {P2P}"


def test_ranks_are_named_where_some_links_are_missing(capsys, tmp_path):
    machine = hosts(2, 2)
    assert largest_piece(machine) == list(machine.endpoints)
    cut = without(machine, ["h1/GPU1"])
    assert largest_piece(cut) == ["h0/GPU0", "h0/GPU1", "h1/GPU0"]
    path = tmp_path / "cut.json"
    path.write_text(topology_json.dumps(cut))
    line = proposed(capsys, "--input", str(path))[-1]
    assert line == f"topocomm plan --input {path} --ranks h0/GPU0,h0/GPU1,h1/GPU0 --bytes 64KiB"
    assert main(shlex.split(line)[1:]) == 0
