"""Scripts that complete command lines: what bash proposes with them."""

import shutil
import subprocess
import sys

import pytest

from topocomm.cli.main import COMMANDS, main

pytest.importorskip("shtab", reason="shell completion needs shtab, of the extra completion")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-m", "topocomm", "completion", "bash"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    path = tmp_path_factory.mktemp("completion") / "topocomm.bash"
    path.write_text(done.stdout)
    return path


def proposals(script, line, where=None):
    """The words that bash proposes at the end of a line."""
    words = " ".join(word or '""' for word in line.split(" "))
    program = (
        f'source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="{line}"; '
        "COMP_POINT=${#COMP_LINE}; function=$(complete -p topocomm | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        "$function topocomm; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, cwd=where)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_proposes_commands_options_and_names(script):
    assert set(COMMANDS) <= set(proposals(script, "topocomm "))
    assert {"--bytes", "--json", "--sizes"} <= set(proposals(script, "topocomm plan --"))
    assert proposals(script, "topocomm plan --system dgx-h") == ["dgx-h100", "dgx-h100-taper2", "dgx-h200"]
    assert proposals(script, "topocomm plan --operator attention") == ["attention.logsumexp"]
    assert proposals(script, "topocomm bench --collective all") == ["allreduce", "allgather", "alltoall"]
    assert proposals(script, "topocomm simulate --objective t") == ["throughput"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_proposes_files(script, tmp_path):
    (tmp_path / "machine.json").touch()
    assert proposals(script, "topocomm inspect --input mach", tmp_path) == ["machine.json"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_name_systems_and_operators(capsys, shell):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "dgx-h100-taper2" in out and "attention.logsumexp" in out and "reduce_scatter" in out
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=out, text=True, check=True, timeout=60)


def test_without_shtab_the_remedy_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "topocomm completion: topocomm completion bash needs shtab, which is not installed; run: pip "
    )
