"""Options of `topocomm calibrate` that are no good: one line and status 2, before the logs are read."""

import pytest

from topocomm.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--system", "v100-4", "--hosts", "0"], "--hosts 0: expected 1 or more"),
        (["--system", "v100-4", "--ranks", "-1"], "--ranks -1: expected 1 or more"),
        (["--system", "v1004"], "system 'v1004' is not in the catalogue"),
    ],
)
def test_options_that_are_no_good(words, message, capsys):
    assert main(["calibrate", "--input", "nowhere.log", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
