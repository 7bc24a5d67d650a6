"""What `enable`, `generate` and forward passes are given: checks of it, and the cache under both names that it has had.

It is `cache` since transformers 5.24, `past_key_values` before.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

import torch

from topocomm import Communicator, MissingExtraError, OperatorError

try:
    from transformers import GenerationMixin
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error

Method = Literal["tree", "ring", "allreduce"]
Order = Literal["any", "canonical"]
Weights = Literal["replicated", "sharded"]
NAMES = ("cache", "past_key_values")
"""The newer name first, which wins where both are given, as in transformers."""
CACHE = next(
    name for name in NAMES if name in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
)
"""The name in `generate`, and in the models of the installed transformers."""


def name_among(parameters: Collection[str]) -> str:
    """Return the name that a function with these parameters has for its cache."""
    return next((name for name in NAMES if name in parameters), CACHE)


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a call, by either name, or None."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)


def check_arguments(function: str, model: object, comm: object) -> None:
    """Refuse what is no model or no communicator, as where they are given in another order."""
    if not isinstance(uncompiled(model), torch.nn.Module) or not isinstance(comm, Communicator):
        given = ", ".join("None" if x is None else type(x).__name__ for x in (model, comm))
        raise OperatorError(f"{function}: expected {function}(model, comm), a model and a Communicator, got ({given})")


def check_choices(function: str, method: str, order: str, weights: str) -> None:
    """Refuse values that are not among the known ones, and those that do not go together."""
    choices = ("method", method, Method), ("order", order, Order), ("weights", weights, Weights)
    for name, value, known in ((name, value, get_args(known)) for name, value, known in choices):
        if value not in known:
            raise OperatorError(f"{function}: {name} must be one of {', '.join(known)}, got {value!r}")
    if order == "canonical" and method != "tree":
        raise OperatorError(f'{function}: order="canonical" goes with method="tree", got {method!r}')


def uncompiled(model: Any) -> Any:
    """Return the model itself in the place of `torch.compile(model)`, which hands `generate` and hooks on to it."""
    return getattr(model, "_orig_mod", model)


def refuse_empty(ids: Any, embeddings: Any) -> None:
    """Refuse a prompt without a token, of which torch says that it cannot reshape."""
    tokens = ids if embeddings is None else embeddings
    if isinstance(tokens, torch.Tensor) and 0 in tokens.shape[:2]:
        name = "input_ids" if embeddings is None else "inputs_embeds"
        raise OperatorError(
            f"generate: {name} is {list(tokens.shape)}: give at least one row, with at least one token in each"
        )
