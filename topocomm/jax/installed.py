"""Whether JAX is there."""

from typing import Any

from topocomm.errors import MissingExtraError


def load_jax() -> Any:
    """Return the jax module.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import jax
    except ModuleNotFoundError:
        raise MissingExtraError("topocomm.jax", "jax", "jax") from None
    return jax
