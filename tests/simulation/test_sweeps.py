"""Sweeps: values as they are written, tables, what does not apply."""

import pytest

from topocomm import PlanError
from topocomm.simulation.sweeps import Row, Sweep, parse_count, parse_sweep, sweep, sweep_document, sweep_text


@pytest.mark.parametrize(
    ("text", "over", "values"),
    [
        ("bytes=1KiB:64KiB:4", "bytes", (1024, 4096, 16384, 65536)),
        ("bytes=0,8,8", "bytes", (0, 8)),
        ("hosts=1,2,33", "hosts", (1, 2, 33)),
        ("context=32K:1M:2", "context", (32768, 65536, 131072, 262144, 524288, 1048576)),
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


@pytest.mark.parametrize(
    ("text", "number"), [("128", 128), ("64k", 65536), ("5.12M", 0), ("2GiB", 2 << 30), ("16 KB", 16000)]
)
def test_counts(text, number):
    if number:
        assert parse_count(text, "--context") == number
    else:
        with pytest.raises(PlanError, match=r"--context '5\.12M': expected a whole number"):
            parse_count(text, "--context")


def times(value, name):
    if name == "halving" and value == 3:
        raise PlanError("no power of two")
    return value * {"ring": 10.0, "halving": 5.5}[name]


def test_rows_have_every_algorithm_and_progress_says_what_comes():
    told = []
    rows = sweep(Sweep("hosts", (2, 3)), ("ring", "halving"), times, told.append)
    assert rows == [
        Row(2, {"ring": 20.0, "halving": 11.0}, {}),
        Row(3, {"ring": 30.0, "halving": None}, {"halving": "no power of two"}),
    ]
    assert told[0] == "1 of 2: hosts 2, ring"
    assert len(told) == 4
    assert sweep_text(Sweep("hosts", (2, 3)), rows) == [
        "hosts       ring    halving fastest",
        "    2      20.00      11.00 halving",
        "    3      30.00          - ring",
        "- halving: no power of two",
    ]
    assert sweep_document(Sweep("hosts", (2, 3)), rows)["rows"][1] == {
        "value": 3,
        "times_us": {"ring": 30.0, "halving": None},
        "not_possible": {"halving": "no power of two"},
    }


def test_an_algorithm_that_never_applies_is_refused():
    with pytest.raises(PlanError, match="no power of two"):
        sweep(Sweep("hosts", (3,)), ("ring", "halving"), times)
