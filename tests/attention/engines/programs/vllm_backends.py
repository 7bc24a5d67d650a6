"""Run by test_installed_vllm.py: vLLM loads its plug-ins, and its registry gives our subclasses of its backends."""

import sys

from vllm.plugins import load_general_plugins
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.ops import dcp

from attention.engines.vllm.dcp_backends import builder_of
from attention.engines.vllm.dcp_combine import dcp_combine, in_place_of

load_general_plugins()
flash, mla = AttentionBackendEnum.FLASH_ATTN.get_class(), AttentionBackendEnum.TRITON_MLA.get_class()
for backend in (flash, mla):
    module, name = backend.full_cls_name()
    assert module == "attention.engines.vllm.dcp_backends" and getattr(sys.modules[module], name) is backend
    assert backend.get_name() == name and backend.supports_dcp()
implementation, builder = flash.get_impl_cls(), mla.get_builder_cls()
assert implementation.__mro__[1].__module__ == "vllm.v1.attention.backends.flash_attn"
assert builder is builder_of(builder.__mro__[1]) and "mla" in builder.__mro__[1].__module__
for function in (dcp.cp_lse_ag_out_rs, dcp.dcp_a2a_lse_reduce):
    ours = in_place_of(function)
    assert ours.func is dcp_combine and ours.args == (function,)
assert in_place_of(dcp.cp_lse_ag_out_ar) is dcp.cp_lse_ag_out_ar
print("ok")
