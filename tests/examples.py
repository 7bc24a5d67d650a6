"""How many examples property tests draw: all that they name, or a part of them in `make test`."""

from typing import Any

from hypothesis import settings

_part = 1


def one_of(part: int) -> None:
    """From now on draw 1 of so many examples."""
    global _part
    _part = part
    settings.register_profile("part", settings.default, max_examples=max(1, 100 // part), deadline=None)
    settings.load_profile("part")


def examples(count: int, **others: Any) -> settings:
    """Decorator of a property test: draw so many examples, or that part of them, each in any time."""
    return settings(max_examples=max(1, count // _part), deadline=None, **others)
