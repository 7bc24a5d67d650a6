"""The line that says what goes on."""

import io
import time

import pytest

from topocomm.cli.terminal import progress_line
from topocomm.cli.terminal.progress_line import ProgressLine


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    for name in ("TERM", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(progress_line, "FIRST_S", 0.0)
    monkeypatch.setattr(progress_line, "EVERY_S", 0.001)
    return Screen()


def wait_for(shown, words):
    until_s = time.monotonic() + 20
    while words not in shown.getvalue():
        assert time.monotonic() < until_s, shown.getvalue()
        time.sleep(0.001)


def test_a_terminal_sees_what_was_said_last_and_for_how_long(screen):
    with ProgressLine("planning", screen) as progress:
        progress("1 of 2")
        wait_for(screen, "\r\x1b[Kplanning 1 of 2 (0 s)")
        progress("2 of 2: a line that is longer than the screen is wide")
        wait_for(screen, "\r\x1b[Kplanning 2 of 2: a line that ")
    assert screen.getvalue().endswith("\r\x1b[K"), "the line is gone"
    assert "\n" not in screen.getvalue()


def test_the_line_is_gone_after_an_error_too(screen):
    def fail():
        with ProgressLine("planning", screen):
            wait_for(screen, "planning (0 s)")
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_shows_nothing(screen, monkeypatch):
    monkeypatch.setattr(progress_line, "FIRST_S", 60.0)
    with ProgressLine("planning", screen) as progress:
        progress("1 of 1")
    assert screen.getvalue() == ""


@pytest.mark.parametrize("setting", [("TERM", "dumb"), ("RANK", "0"), None])
def test_no_other_output_gets_a_line(screen, monkeypatch, setting):
    shown = screen if setting else io.StringIO()
    if setting:
        monkeypatch.setenv(*setting)
        monkeypatch.setenv("WORLD_SIZE", "2")
    with ProgressLine("planning", shown) as progress:
        progress("1 of 1")
        time.sleep(0.05)
    assert shown.getvalue() == ""


def test_a_file_is_told_once_how_long_it_takes(monkeypatch):
    log = io.StringIO()
    now_s = iter((100.0, 104.0, 108.0, 112.0))
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: next(now_s))
    with ProgressLine("simulating", log, steps=9) as progress:
        for step in range(9):
            progress(f"step {step}")
    assert log.getvalue() == "simulating 9 of them: about 20 s\n", "the first took 4 s, later ones count half"


def test_a_file_is_not_told_of_what_is_quick():
    log = io.StringIO()
    for steps in (1, 9):
        with ProgressLine("simulating", log, steps=steps) as progress:
            for step in range(steps):
                progress(f"step {step}")
    assert log.getvalue() == ""
