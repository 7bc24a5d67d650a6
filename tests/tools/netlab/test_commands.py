"""The command line: topologies, and bad words."""

import json

import pytest

from tools.netlab import lab, namespaces
from tools.netlab.commands import main
from tools.netlab.network import network_of, racks
from topocomm.topology.readers.plain import topology_json


def test_a_topology_is_written_as_json(capsys):
    assert main(["topology", "--hosts=4", "--ranks=2", "--mbit=100", "--racks=2", "--uplink-mbit=50"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["schema"] == "topocomm.topology/1"
    assert network_of(topology_json.read(text, "lab")) == network_of(racks(4, 2, 100.0, 2, 50.0))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["topology", "--hosts=0"], "0 hosts x 2 ranks in 1 racks"),
        (["run"], r"run: no program; expected `run \[TOPOLOGY\] -- PROGRAM"),
        (["run", "missing.json", "--", "true"], "missing.json: No such file"),
        (["down", "--lab=1"], "no lab of process 1 runs"),
    ],
)
def test_bad_words_are_one_line(words, text, capsys):
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("netlab: ") and said.err.count("\n") == 1
    assert pytest.importorskip("re").search(text, said.err)


def test_a_machine_without_namespaces_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab, "why_not", lambda: "needs ip (Debian: iproute2)")
    path = tmp_path / "lab.json"
    path.write_text(topology_json.dumps(racks(2, 1, 100.0)))
    assert main(["run", str(path), "--", "true"]) == 2
    assert capsys.readouterr().err == "netlab: no lab on this machine: it needs ip (Debian: iproute2)\n"


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else tool)
    namespaces.why_not.cache_clear()
    assert namespaces.why_not() == "needs tc (Debian: util-linux, iproute2)"
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    namespaces.why_not.cache_clear()
    assert "`unshare -Ur`" in namespaces.why_not()
    namespaces.why_not.cache_clear()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["upp"], "did you mean up?"),
        (["topology", "--hots=2"], "unrecognized arguments: --hots=2; did you mean --hosts?"),
        (["rate", "host1", "fast"], "argument mbit: expected a number, got 'fast'"),
    ],
)
def test_wrong_words_end_with_what_to_do(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert err.startswith("python -m tools.netlab") and err.endswith(f"{said}\n")


def test_a_topology_is_not_what_compare_takes(tmp_path, capsys):
    (tmp_path / "lab.json").write_text(topology_json.dumps(racks(2, 1, 100.0)))
    assert main(["compare", str(tmp_path / "lab.json")]) == 2
    assert "not what `measure` writes" in capsys.readouterr().err
