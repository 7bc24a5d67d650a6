"""NCCL's topology XML as it is pasted."""

import pytest

from tests.topology.readers.nccl.xml.texts import h100_half
from tests.topology.ways_to_paste import WAYS, assert_lines_stay, assert_survives


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_paste(way, tmp_path):
    assert_survives(h100_half(), tmp_path, way)


def test_a_mail_with_an_answer_above(tmp_path):
    assert_survives(h100_half(), tmp_path, "quoted")
    quoted = "\n".join(f"> {line}" for line in h100_half().splitlines())
    assert_lines_stay(f"Thank you, that is:\n\n{quoted}\n")
