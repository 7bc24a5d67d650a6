"""The argument by which a call is given its cache: `cache` since transformers 5.24, `past_key_values` before."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from topocomm import MissingExtraError

try:
    from transformers import GenerationMixin
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

NAMES = ("cache", "past_key_values")
"""The newer name first, which wins where both are given, as in transformers."""


def name_among(parameters: Collection[str]) -> str:
    """Return the name that a function with these parameters has for its cache."""
    return next((name for name in NAMES if name in parameters), CACHE)


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a call, by either name, or None."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)


CACHE = next(
    name for name in NAMES if name in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
)
"""The name in `generate`, and in the models of the installed transformers."""
