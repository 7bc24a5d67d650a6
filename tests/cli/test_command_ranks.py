"""The ranks that a command runs on."""

import pytest

from topocomm.cli import command_ranks
from topocomm.cli.command_ranks import LAUNCHERS, launched_as, run_on_ranks, speaks
from topocomm.execute import start


@pytest.mark.parametrize(("name", "rank", "size"), LAUNCHERS)
def test_every_launcher_is_known_by_its_variables(name, rank, size):
    assert launched_as({rank: "3", size: "8"}) == (name, 3, 8)
    assert launched_as({rank: "3"}) is None
    assert launched_as({rank: "x", size: "8"}) is None


def test_rank_0_and_processes_without_a_launcher_speak(monkeypatch):
    for _, rank, size in LAUNCHERS:
        monkeypatch.delenv(rank, raising=False)
        monkeypatch.delenv(size, raising=False)
    assert speaks()
    monkeypatch.setenv("PMI_SIZE", "2")
    for rank, expected in (("0", True), ("1", False)):
        monkeypatch.setenv("PMI_RANK", rank)
        assert speaks() is expected


def test_without_a_launcher_ranks_are_threads(monkeypatch):
    monkeypatch.setattr(command_ranks, "launched_as", lambda: None)
    assert run_on_ranks(lambda comm: (comm.rank, comm.size), 3) == (0, 3)


def test_under_a_launcher_the_command_joins_its_ranks(monkeypatch):
    class Job:
        rank = 5

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(command_ranks, "launched_as", lambda: ("mpirun", 5, 8))
    monkeypatch.setattr(start, "init", Job)
    assert run_on_ranks(lambda comm: comm.rank, 3) == 5
