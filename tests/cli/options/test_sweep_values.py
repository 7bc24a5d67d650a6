"""Sweeps: values as they are written."""

import pytest

from topocomm import PlanError
from topocomm.cli.options.sweep_values import Sweep, parse_sweep


@pytest.mark.parametrize(
    ("text", "over", "values"),
    [
        ("bytes=1KiB:64KiB:4", "bytes", (1024, 4096, 16384, 65536)),
        ("bytes=0,8,8", "bytes", (0, 8)),
        ("hosts=1,2,33", "hosts", (1, 2, 33)),
        ("context=32K:1M:2", "context", (32768, 65536, 131072, 262144, 524288, 1048576)),
        ("bytes=1:10:3", "bytes", (1, 3, 9, 10)),
        ("context=1.5K", "context", (1536,)),
        ("bytes=64KB,64K,64kib,2mb", "bytes", (64000, 65536, 2000000)),
    ],
)
def test_values(text, over, values):
    assert parse_sweep(text) == Sweep(over, values)


@pytest.mark.parametrize(
    "text",
    [
        *("bytes", "ranks=1", "=1", "bytes=", "bytes=1:2", "bytes=1:8:1", "bytes=1:8:x", "bytes=8:1:2"),
        *("hosts=0", "hosts=-1", "bytes=1.3", "bytes=0:8:2", "bytes=1,", "context=0"),
    ],
)
def test_what_is_no_sweep_is_refused(text):
    with pytest.raises(PlanError, match=r"^--sweep "):
        parse_sweep(text)


def test_a_sweep_of_too_many_values_is_refused():
    with pytest.raises(PlanError, match="expected 1 to 200 values"):
        parse_sweep("hosts=" + ",".join(map(str, range(1, 300))))
