"""Results on stdout or in files that are whole or not there."""

import io
import os
import sys

import pytest

from topocomm.cli.terminal.output import terminal_columns, write_result, write_text


def test_a_file_is_replaced_in_one_step(tmp_path):
    file = tmp_path / "plan.json"
    for text in ("old\n", "new \u00b5s\n"):
        write_result(text, str(file))
        assert file.read_text("utf-8") == text
    assert os.listdir(tmp_path) == ["plan.json"]


def test_the_target_of_a_link_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_result("text\n", str(tmp_path / "link"))
    assert (tmp_path / "target").read_text() == "text\n"
    assert (tmp_path / "link").is_symlink()


def test_what_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    write_result("old\n", str(file))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot write: No space left on device") as error:
        write_result("new\n", str(file))
    assert error.value.filename == str(file)
    assert (file.read_text(), os.listdir(tmp_path)) == ("old\n", ["plan.json"])


def test_a_device_is_written_to_directly():
    write_result("text\n", os.devnull)
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize(
    ("plain", "shown"), [(None, b"5 \\xb5s\n"), (lambda text: text.replace("\u00b5", "u"), b"5 us\n")]
)
def test_stdout_that_cannot_encode_gets_plain_text(monkeypatch, plain, shown):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write_result("5 \u00b5s\n", None, plain=plain)
    sys.stdout.flush()
    assert raw.getvalue() == shown


def test_text_has_colours_on_stdout_only(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_text("title\n")
    write_text("title\n", str(tmp_path / "file"))
    write_result("title\n", None)
    assert capsys.readouterr().out == "\x1b[1mtitle\x1b[0m\ntitle\n"
    assert (tmp_path / "file").read_text() == "title\n"


def test_columns_are_those_of_a_terminal(monkeypatch):
    assert terminal_columns() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_columns() == 72
