"""vLLM's attention backends with our merge: `NAME` of this module is the backend of that name in vLLM's registry.

vLLM finds them by their path, `attention.engines.vllm.dcp_backends.FLASH_ATTN`, and each is made when it asks. It is
a subclass of vLLM's own and differs from it where decode context parallelism is on: the implementation's
`dcp_combine`, or, of MLA, `combine` of each layer's manager, which the metadata builder knows.
"""

from __future__ import annotations

import functools
from typing import Any

from attention.engines.vllm.dcp_combine import in_place_of

BY_IMPLEMENTATION = ("FLASH_ATTN", "FLASHINFER")
"""Backends whose implementation has `dcp_combine`."""
BY_LAYER = (
    "CUTLASS_MLA",
    "FLASHINFER_MLA",
    "FLASHINFER_MLA_SPARSE",
    "FLASHMLA",
    "FLASHMLA_SPARSE",
    "FLASH_ATTN_MLA",
    "ROCM_AITER_MLA",
    "TOKENSPEED_MLA",
    "TRITON_MLA",
)
"""Backends for MLA that have decode context parallelism."""


def __getattr__(name: str) -> Any:
    if name not in (*BY_IMPLEMENTATION, *BY_LAYER):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    parent = resolve_obj_by_qualname(AttentionBackendEnum[name].value)
    made = with_our_combine(name, parent)
    globals()[name] = made
    return made


def with_our_combine(name: str, parent: Any) -> Any:
    """Return the subclass of a backend of vLLM's."""

    def get_impl_cls() -> Any:
        found = parent.get_impl_cls()
        return implementation_of(found) if name in BY_IMPLEMENTATION else found

    def get_builder_cls() -> Any:
        found = parent.get_builder_cls()
        return builder_of(found) if name in BY_LAYER else found

    body = {
        "__doc__": f"{parent.__name__} with topocomm's merge of partials.",
        "__module__": __name__,
        "__qualname__": name,
        "get_impl_cls": staticmethod(get_impl_cls),
        "get_builder_cls": staticmethod(get_builder_cls),
    }
    return type(name, (parent,), body)


@functools.cache
def implementation_of(parent: Any) -> Any:
    """Return the subclass of an implementation that sets `dcp_combine`."""

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        parent.__init__(self, *args, **kwargs)
        if self.dcp_world_size > 1:
            self.dcp_combine = in_place_of(self.dcp_combine)

    return type(parent.__name__, (parent,), {"__module__": __name__, "__init__": initialise})


@functools.cache
def builder_of(parent: Any) -> Any:
    """Return the subclass of a metadata builder that sets `combine` of the managers of its layers."""

    def initialise(
        self: Any, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, *args: Any, **kwargs: Any
    ) -> None:
        parent.__init__(self, kv_cache_spec, layer_names, vllm_config, *args, **kwargs)
        layers = vllm_config.compilation_config.static_forward_context
        for layer_name in layer_names:
            manager = getattr(layers[layer_name], "dcp_manager", None)
            if manager is not None:
                manager.combine = in_place_of(manager.combine)

    return type(parent.__name__, (parent,), {"__module__": __name__, "__init__": initialise})
