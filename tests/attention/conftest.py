"""Ranks on threads share the cores, so each computes on one: teams of threads would wait for each other."""

from importlib.util import find_spec

import pytest

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The directory of a tiny model with a chat template; answers end at a letter that comes in some of them."""
    from tests.attention.serve.serving import LETTERS, save_model

    return save_model(tmp_path_factory.mktemp("served") / "tiny", end_token=2 + LETTERS.index("?"))


@pytest.fixture(scope="session")
def reference(served):
    """What plain transformers makes of it."""
    from tests.attention.serve.serving import Reference

    return Reference(served)
