"""The pictures of the documentation are what the command draws today, and small."""

import pytest

from tools.pictures import COMMANDS, FOLDER, draw


@pytest.mark.every_case
@pytest.mark.parametrize("name", COMMANDS)
def test_pictures_are_up_to_date_and_small(tmp_path, name):
    new = draw(name, tmp_path)
    assert new.read_bytes() == (FOLDER / f"{name}.svg").read_bytes(), "python -m tools.pictures"
    assert new.stat().st_size < 60 * 1024


def test_a_command_that_fails_is_told(tmp_path, capsys):
    with pytest.raises(RuntimeError, match="inspect --system dgx-1-v100 failed"):
        draw("dgx-1", tmp_path / "missing")
    assert "expected a folder" in capsys.readouterr().err
