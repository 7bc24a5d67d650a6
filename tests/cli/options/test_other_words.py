"""Arguments without their option, and files that are not there."""

import pytest

from topocomm.cli.main import COMMANDS, parser_of
from topocomm.cli.options.other_words import OTHER_WORDS, meant_by, meant_file

OPTIONS = ("--system", "--input", "--bytes")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("DGX-H100", "--system dgx-h100"),
        ("machine.json", "--input machine.json"),
        ("64KiB", "--bytes 64KiB"),
        ("1.5m", "--bytes 1.5m"),
        ("word", None),
    ],
)
def test_words_without_their_option(word, meant):
    assert meant_by(word, OPTIONS) == (f"; did you mean {meant}?" if meant else "")
    assert meant_by(word, ()) == ""


def test_files_beside_the_one_that_is_missing(tmp_path, monkeypatch):
    (tmp_path / "machine.json").touch()
    missing = "cannot be read: No such file or directory"
    assert meant_file(f"{tmp_path}/machin.json: {missing}") == f"; did you mean {tmp_path}/machine.json?"
    assert meant_file(f"{tmp_path}/x: {missing}") == meant_file(f"{tmp_path}/none/machin.json: {missing}") == ""
    assert meant_file(f"{tmp_path}/machin.json: something else") == ""
    monkeypatch.chdir(tmp_path)
    assert meant_file(f"machin.json: {missing}") == "; did you mean machine.json?"
    assert meant_file(f"h100: {missing}") == ""
    assert meant_file(f"DGX_H100: {missing}") == "; did you mean --system dgx-h100?"


def test_what_other_words_stand_for_is_there():
    parser, _ = parser_of(COMMANDS)
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    options = {option for each in commands.values() for option in each._option_string_actions}
    names = {name for each in commands.values() for action in each._actions for name in action.choices or ()}
    known = {*COMMANDS, *options, *names, "sum", "prod", "attention.logsumexp"}
    assert {name for names in OTHER_WORDS.values() for name in names.split()} <= known
