"""What the tests of single checks share: libraries that are there, and what a finding says."""

from topocomm.doctor.checks.library_checks import MpiLibrary

OPEN_MPI = "Open MPI v5.0.11"
NO_MPI = MpiLibrary(None, "finds no MPI library")


def versions(**found):
    return lambda package: found.get(package.replace("-", "_"))


def found(finding, level, *parts):
    """The finding has this level, all these words, and a remedy if it is a complaint."""
    assert finding.level == level, finding
    said = f"{finding.text} -> {finding.remedy}"
    for part in parts:
        assert part in said, said
    if level in ("warn", "FAIL"):
        assert finding.remedy
