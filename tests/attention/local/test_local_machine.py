"""What is asked of a machine, with torch's answers of one that is not here."""

import sys
from types import SimpleNamespace

import pytest
import torch

from attention.local import local_machine as machine
from attention.local.choice import CUDNN, FLASH_3, PREFILL, Call, choose
from tests.attention.local.doubles import Flash3, FlashInfer, FlashInferDecode, FlashInferLatents

PROMPT = Call("cuda", ("bfloat16",) * 2, 1, 32, 8, 512, 512, 128, 128, "square")
GPU = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch):
    """A GPU of this name and capability, with these modules installed."""

    def put(name, capability, *, modules=(), hip=None, cudnn=True, enabled=True, nvcc="nvcc", **libraries):
        properties = SimpleNamespace(name=name, major=capability[0], minor=capability[1])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: cudnn)
        monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: enabled)
        monkeypatch.setattr(machine, "find_spec", lambda module: True if module in modules else None)
        doubles = {"flash_attn_interface": Flash3(), "flashinfer": FlashInfer()}
        doubles |= {"flashinfer.decode": FlashInferDecode(), "flashinfer.mla": FlashInferLatents()}
        for module, library in (doubles | libraries).items():
            monkeypatch.setitem(sys.modules, module, library)
        for variable in ("CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(machine.shutil, "which", lambda name: nvcc)
        return machine.machine_of.__wrapped__(GPU, gpu=True)

    return put


def test_a_card_with_everything(card):
    here = card("H100", (9, 0), modules=("flash_attn_interface", "flashinfer", "triton", "attention.kernels._native"))
    assert (here.device, here.name, here.capability, dict(here.missing)) == ("cuda", "H100", (9, 0), {})
    assert choose(PROMPT, here).row.name == FLASH_3


@pytest.mark.parametrize(
    ("options", "chosen", "why"),
    [
        ({}, CUDNN, None),
        ({"enabled": False}, PREFILL, "switched off by torch.backends.cuda.enable_cudnn_sdp(False)"),
        ({"cudnn": False}, PREFILL, "this torch has no cuDNN"),
        ({"hip": "6.4"}, PREFILL, "this torch has no cuDNN"),
    ],
    ids=str,
)
def test_what_is_missing_has_a_reason(card, options, chosen, why):
    here = card("GPU", (9, 0), modules=("triton",), **options)
    assert here.missing.get("cuDNN") == why
    assert here.missing["flashinfer"] == "flashinfer is not installed"
    assert here.missing["flash_attn_interface"] == "flash_attn_interface is not installed"
    assert here.capability == (None if "hip" in options else (9, 0))
    assert choose(PROMPT, here).row.name == chosen


def older(q, k, v, softmax_scale=None, causal=False, qv=None, num_splits=1):
    """FlashAttention-3 as it was before September 2025."""


@pytest.mark.parametrize(
    ("options", "library", "why"),
    [
        (
            {"flash_attn_interface": None},
            "flash_attn_interface",
            "flash_attn_interface is installed but cannot be loaded: import of flash_attn_interface halted",
        ),
        (
            {"flash_attn_interface": SimpleNamespace(flash_attn_func=older)},
            "flash_attn_interface",
            "flash_attn_interface is another release: its flash_attn_func has no return_attn_probs",
        ),
        ({"flashinfer": SimpleNamespace()}, "flashinfer", "flashinfer is installed but cannot be loaded"),
        (
            {"flashinfer.mla": SimpleNamespace()},
            "flashinfer.mla",
            "flashinfer.mla is installed but cannot be loaded",
        ),
        ({"nvcc": None}, "flashinfer", "flashinfer has neither compiled kernels (flashinfer-jit-cache) nor an nvcc"),
    ],
    ids=["halted", "another release", "empty", "no latents", "not compiled"],
)
def test_a_library_that_cannot_be_called(card, monkeypatch, options, library, why):
    """It is passed over with its reason: the first call would fail."""
    monkeypatch.setattr(machine.Path, "exists", lambda path: False)
    everything = ("flash_attn_interface", "flashinfer", "triton", "attention.kernels._native")
    here = card("H100", (9, 0), modules=everything, **options)
    assert list(here.missing) == [library] and here.missing[library].startswith(why)
    assert not card("MI300X", (9, 4), modules=everything, hip="6.4", **options).missing.keys() - {"cuDNN"}


def test_kernels_of_flashinfer_that_came_compiled(card, monkeypatch):
    monkeypatch.setattr(machine.Path, "exists", lambda path: False)
    assert not card(
        "H100", (9, 0), modules=("flashinfer", "flashinfer_jit_cache", "triton", "attention.kernels._native"), nvcc=None
    ).missing.keys() - {"flash_attn_interface"}


def test_host_memory():
    here = machine.machine_of(torch.device("cpu"), gpu=False)
    assert (here.device, here.capability) == ("cpu", None) and "torch" not in here.missing
    played = machine.machine_of(torch.device("cpu"), gpu=True)  # kernels in Triton's interpreter
    assert played.device == "cuda" and played.capability is None
    assert choose(PROMPT, played).row.name == PREFILL
