"""The tiny model and the prompt that several tests share."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:  # not importorskip: it would import Triton before its interpreter is chosen
    pytest.skip("needs triton", allow_module_level=True)

from tests import interpreted  # noqa: F401, I001 before transformers, which imports triton

import torch

from tests.attention.huggingface.tiny_llama import build


@pytest.fixture(scope="module")
def llama():
    return build()


@pytest.fixture(scope="module")
def prompt():
    """Three rows of 50 tokens, of which the first has 20 of padding on its left and the last 3."""
    ids = torch.randint(3, 199, (3, 50), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    mask[2, :3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
