"""Whether Python finds this package as `attention`: PyPI has another distribution of that name."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions

DISTRIBUTION = "topocomm"
MARK = "LOGSUMEXP"
"""A name that our `attention/__init__.py` has and no other's."""


def why_shadowed() -> str | None:
    """None if `attention` is topocomm's, else what is wrong and what to do, in one line.

    Two distributions that install `attention` into one environment overwrite each other's files, so that this
    module can be ours while `attention/__init__.py` is not.
    """
    package = sys.modules["attention"]
    if hasattr(package, MARK):
        return None
    others = [name for name in packages_distributions().get("attention", ()) if name != DISTRIBUTION]
    whose = f"it also belongs to the distribution {others[0]!r}" if others else "another package has overwritten it"
    remedy = f"pip uninstall {others[0] if others else 'attention'}; pip install --force-reinstall {DISTRIBUTION}"
    return f"{package.__file__} is not {DISTRIBUTION}'s: {whose}; run: {remedy}"
