"""What the choice of a kernel asks about this machine: which GPU, and which libraries are there."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from attention.local.choice import Machine

FLASH_3_MODULES = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")
"""Where FlashAttention-3 is, by the way it was installed: built from its directory `hopper`, or packaged."""
FLASH_3_CALL = ("flash_attn_func", ("softmax_scale", "causal", "qv", "num_splits", "return_attn_probs"))
"""What is called, and with what: return_attn_probs came in September 2025, before lse was always returned."""
FLASHINFER_CALL = ("single_prefill_with_kv_cache", ("causal", "kv_layout", "sm_scale", "backend", "return_lse"))
FLASHINFER_WRAPPERS = {
    "flashinfer.decode": ("BatchDecodeWithPagedKVCacheWrapper", ("kv_layout", "use_tensor_cores", "backend")),
    "flashinfer.mla": ("BatchMLAPagedAttentionWrapper", ("backend",)),
}
"""By module: what batches and latents need, and with what it is made."""
MODULES = {"flashinfer": "flashinfer", "triton": "triton", "native": "attention.kernels._native"}


@cache
def machine_of(device: torch.device, *, gpu: bool) -> Machine:
    """Return what the choice asks about the machine of a device; asked once a process.

    `gpu` says whether it counts as a GPU: host memory does while kernels run in Triton's interpreter.
    """
    missing = {name: f"{needed} is not installed" for name, needed in MODULES.items() if module((needed,)) is None}
    if not gpu:
        if not has_grouped_heads():
            missing["torch"] = "this torch's kernel has no grouped heads"
        if not torch.cpu._is_amx_tile_supported():
            missing["torch.amx"] = "this processor has no AMX"
        return Machine("cpu", "CPU", None, missing)
    flash3 = module(FLASH_3_MODULES)
    if flash3 is None:
        missing["flash_attn_interface"] = "flash_attn_interface is not installed"
    if device.type != "cuda":
        interpreted = "kernels run in Triton's interpreter here"
        return Machine("cuda", "Triton's interpreter", None, missing | {"cuDNN": interpreted})
    properties = torch.cuda.get_device_properties(device)
    backends: Any = torch.backends
    if torch.version.hip is not None or not backends.cudnn.is_available():
        missing["cuDNN"] = "this torch has no cuDNN"
    elif not backends.cuda.cudnn_sdp_enabled():
        missing["cuDNN"] = "switched off by torch.backends.cuda.enable_cudnn_sdp(False)"
    if torch.version.hip is not None:
        return Machine("cuda", properties.name, None, missing)
    faults = {"flash_attn_interface": None if flash3 is None else fault_of(flash3, *FLASH_3_CALL)}
    if "flashinfer" not in missing:
        faults["flashinfer"] = fault_of("flashinfer", *FLASHINFER_CALL) or _cannot_compile()
        if faults["flashinfer"] is None:
            faults |= {name: fault_of(name, *call) for name, call in FLASHINFER_WRAPPERS.items()}
    missing |= {name: fault for name, fault in faults.items() if fault is not None}
    return Machine("cuda", properties.name, (properties.major, properties.minor), missing)


def fault_of(name: str, function: str, arguments: tuple[str, ...]) -> str | None:
    """Why a library that is installed cannot be called as it is here; None: it can. It is imported.

    A build for another torch is found here, and not in the first call that chooses it.
    """
    try:
        called = getattr(import_module(name), function)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        return f"{name} is installed but cannot be loaded: " + str(error).partition("\n")[0]
    lacking = [argument for argument in arguments if argument not in signature(called).parameters]
    return f"{name} is another release: its {function} has no {', '.join(lacking)}" if lacking else None


def _cannot_compile() -> str | None:
    """FlashInfer compiles its kernels at their first call, unless they were brought along compiled."""
    nvcc = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc")
    if nvcc or Path("/usr/local/cuda/bin/nvcc").exists() or module(("flashinfer_jit_cache",)) is not None:
        return None
    return "flashinfer has neither compiled kernels (flashinfer-jit-cache) nor an nvcc to compile them"


@cache
def has_grouped_heads() -> bool:
    """Whether torch's kernel for the CPU takes fewer heads of keys than of queries.

    Releases that do not read on in memory as if there were as many, without a word. So it is tried where what follows
    are values of another head, which the right result does not hold.
    """
    q, keys = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8)
    values = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1).expand(1, 2, 1, 8).contiguous()
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return bool((attention(q, keys[:, :1], values[:, :1], 0.0, False, scale=1.0)[0] == 1).all())


def module(names: tuple[str, ...]) -> str | None:
    """The first of these modules that is installed; none is imported, but packages around it are."""
    for name in names:
        try:
            if find_spec(name) is not None:
                return name
        except (ImportError, ValueError):  # its package is missing or half there
            continue
    return None
