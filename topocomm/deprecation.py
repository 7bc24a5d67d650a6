"""How public names go: they warn for some releases first (docs/versioning.md)."""

import warnings


def deprecated(name: str, *, instead: str, gone_in: str) -> None:
    """Warn the caller of a function that a public name goes; called by what the name stands for.

    Args:
        name: What was used, such as "Communicator.from_nccl".
        instead: What to use, in words or as code.
        gone_in: The release without it, such as "2.0".
    """
    text = f"{name} is deprecated and goes in topocomm {gone_in}; use {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)  # past this function and the deprecated one
