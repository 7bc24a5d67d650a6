"""Colours where a terminal wants them, and nowhere else."""

import io

import pytest

from topocomm.cli.command_ranks import LAUNCHERS
from topocomm.cli.terminal.text_colours import coloured, complaint, is_terminal, wants_colour

VARIABLES = (
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "CLICOLOR",
    "TERM",
    *(name for _, *own in LAUNCHERS for name in own),
)


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "screen", "pipe"),
    [
        ({}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"CLICOLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"CLICOLOR_FORCE": "1"}, True, True),
        ({"CLICOLOR_FORCE": "0"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, False, False),
    ],
)
def test_who_wants_colours(monkeypatch, environment, screen, pipe):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (wants_colour(Screen()), wants_colour(io.StringIO())) == (screen, pipe)


def test_a_terminal_of_a_launcher_is_none(monkeypatch):
    assert is_terminal(Screen())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not is_terminal(Screen())


def test_titles_warnings_and_next_commands_stand_out():
    text = "dgx (catalogue)\n\nNUMA/0\nAssumed: all\nNext: topocomm plan\n"
    assert coloured(text, io.StringIO()) == text
    assert coloured(text, Screen()) == (
        "\x1b[1mdgx (catalogue)\x1b[0m\n\nNUMA/0\n\x1b[33mAssumed\x1b[0m: all\n\x1b[32mNext\x1b[0m: topocomm plan\n"
    )
    findings = "ok    numpy  2\nFAIL  mpi    none\n             -> install it\n"
    assert coloured(findings, Screen()) == (
        "\x1b[32mok\x1b[0m    numpy  2\n\x1b[31mFAIL\x1b[0m  mpi    none\n\x1b[1m             -> install it\x1b[0m\n"
    )


def test_errors_are_one_line_of_ascii(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert complaint("topocomm plan", "bad\n\u00b5s") == "topocomm plan: bad \\xb5s\n"
    monkeypatch.setattr("sys.stderr", Screen())
    assert complaint("topocomm plan", "bad") == "\x1b[31mtopocomm plan\x1b[0m: bad\n"
