"""Deprecated names warn where they are used, and are gone when their release is there."""

import re
from pathlib import Path

import pytest
from packaging.version import Version

import topocomm
from topocomm.deprecation import deprecated

ROOT = Path(__file__).parents[1]
CALL = re.compile(r"deprecated\([^()]*gone_in=\"([\d.]+)\"\)")


def overdue(text, version):
    """The releases in which names of a source should have gone by then."""
    return [gone_in for gone_in in CALL.findall(text) if Version(gone_in) <= Version(version)]


def test_the_warning_names_the_caller_and_what_to_use():
    def old():
        deprecated("old", instead="new()", gone_in="2.0")

    with pytest.warns(DeprecationWarning, match=r"^old is deprecated and goes in topocomm 2.0; use new\(\)$") as caught:
        old()
    assert caught[0].filename == __file__


def test_no_deprecated_name_outlives_its_release():
    source = 'deprecated("a", instead="b", gone_in="2.0")\ndeprecated(\n    "c", instead="d", gone_in="1.5")'
    assert (
        overdue(source, "1.4") == [] and overdue(source, "1.6") == ["1.5"] and overdue(source, "2.0") == ["2.0", "1.5"]
    )
    for package in ("topocomm", "attention"):
        for path in (ROOT / package).rglob("*.py"):
            assert not overdue(path.read_text(), topocomm.__version__), path
