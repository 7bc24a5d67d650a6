"""Models and inputs that are made once, also where ranks on threads ask for them at the same time."""

from functools import cache, wraps
from threading import RLock


def once(function):
    """As `functools.cache`, but one caller at a time: two would draw from one generator, and differ."""
    kept, lock = cache(function), RLock()

    @wraps(function)
    def only_one(*args, **options):
        with lock:
            return kept(*args, **options)

    return only_one
