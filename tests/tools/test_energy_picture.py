"""The picture of the energy is what the example computes today."""

import pytest

pytest.importorskip("torch")

from tools import energy_picture


def test_the_committed_picture_is_what_the_command_draws():
    drawn = energy_picture.draw()
    assert drawn == energy_picture.PICTURE.read_text(), "run python -m tools.energy_picture"
