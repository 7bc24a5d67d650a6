"""The format of a log is recognised by its content."""

import pytest

from tests.calibration.readers import (
    test_mpibench,
    test_nccl_tests_json,
    test_nccl_tests_text,
    test_osu,
    test_table_json,
)
from topocomm import TopocommError
from topocomm.calibration.readers.log_formats import load_log, read_log


@pytest.mark.parametrize(
    ("text", "collective"),
    [
        (test_nccl_tests_text.NEW, "allreduce"),
        (test_nccl_tests_json.document(), "allreduce"),
        (test_osu.SHORT, "broadcast"),
        (test_mpibench.LOG, "barrier"),
        (test_table_json.document(), "allreduce"),
    ],
)
def test_each_format_is_recognised(text, collective, tmp_path):
    path = tmp_path / "some.log"
    path.write_text(text)
    assert load_log(str(path))[0].collective == collective


def test_an_unknown_format_names_those_that_are_known():
    with pytest.raises(TopocommError, match=r"a\.log: line 1: unknown format; expected nccl-tests"):
        read_log("hello\n", "a.log")


def test_a_file_that_is_not_there():
    with pytest.raises(TopocommError, match=r"none\.log: cannot be read"):
        load_log("none.log")
