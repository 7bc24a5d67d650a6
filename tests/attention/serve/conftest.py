"""The tiny models that are served, and what transformers makes of them."""

import pytest

from tests.attention.serve.serving import LETTERS, Reference, save_model


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A model directory with a chat template; answers end at a letter that comes in some of them."""
    return save_model(tmp_path_factory.mktemp("served") / "tiny", end_token=2 + LETTERS.index("?"))


@pytest.fixture(scope="session")
def reference(served):
    return Reference(served)
