"""`python -m attention decode`: synthetic data that no rank count changes, the check, the table."""

import re

import pytest

from attention.__main__ import main
from tests.attention.faults import plant_lse_fault
from tests.mpi import mpirun

SMALL = ["decode", "--context=3000", "--heads=6", "--kv-heads=2", "--head-dim=20", "--batch=2", "--steps=3"]


def table(text):
    """The rows of the table by method: p50, p99, wire bytes, error, bits."""
    rows = re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +([\d,]+) +(\S+)  (the same|differ)$", text, re.MULTILINE)
    return {row[0]: row[1:] for row in rows}


def check_table(text, ranks):
    rows = table(text)
    assert list(rows) == ["tree", "ring", "allreduce"]
    for p50, p99, _, error, bits in rows.values():
        assert 0 < float(p50) <= float(p99)
        assert float(error) <= 1e-5
        assert bits == "the same"
    kv_bytes = 2 * 4 * 2 * 2 * 3000 * 20
    assert int(rows["ring"][2].replace(",", "")) == (ranks - 1) * kv_bytes
    assert f"float32 keys and values: {kv_bytes:,} bytes" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2, 5])
def test_on_threads(capsys, ranks):
    assert main([*SMALL, f"--ranks={ranks}"]) == 0
    check_table(capsys.readouterr().out, ranks)


def test_wire_bytes_on_two_ranks(capsys):
    """An exchange sends every rank's value once: batch x heads rows of 20 numbers and a log-sum-exp, or three times."""
    assert main([*SMALL, "--ranks=2", "--method=all"]) == 0
    rows = table(capsys.readouterr().out)
    tree, allreduce = (int(rows[name][2].replace(",", "")) for name in ("tree", "allreduce"))
    assert tree == 2 * 12 * 21 * 4
    assert allreduce == 2 * 12 * 22 * 4


@pytest.mark.long
def test_under_mpirun():
    done = mpirun(3, ["-m", "attention", *SMALL])
    assert done.returncode == 0, done.stderr
    check_table(done.stdout, 3)


def test_one_method(capsys):
    assert main([*SMALL, "--ranks=2", "--method=ring"]) == 0
    assert list(table(capsys.readouterr().out)) == ["ring"]


def test_a_wrong_partial_fails_the_check(capsys, monkeypatch):
    plant_lse_fault(monkeypatch)
    assert main([*SMALL, "--ranks=2", "--method=tree"]) == 1
    assert re.search(
        r"^attention decode: error: the result is off by \S+, more than 1e-05$", capsys.readouterr().err, re.M
    )


def test_heads_that_do_not_divide(capsys):
    assert main(["decode", "--heads=6", "--kv-heads=4"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "--heads 6 must be a multiple of --kv-heads 4" in said.err
