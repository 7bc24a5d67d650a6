"""Subclasses of vLLM's backends: they differ from their parents where decode context parallelism is on."""

import functools
from types import SimpleNamespace

import pytest

from attention.engines.vllm import dcp_backends
from attention.engines.vllm.dcp_backends import BY_IMPLEMENTATION, BY_LAYER, with_our_combine
from attention.engines.vllm.dcp_combine import dcp_combine
from tests.attention.engines.sources import classes, path


def cp_lse_ag_out_rs(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, seq_lens, query_start_loc):
    """vLLM's function, by name."""


class Impl:
    """vLLM's implementation, as far as the subclass sees it."""

    def __init__(self, dcp_world_size, *, a2a=False):
        self.dcp_world_size, self.a2a = dcp_world_size, a2a
        self.dcp_combine = functools.partial(cp_lse_ag_out_rs, is_lse_base_on_e=False)


class Builder:
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device, extra=None):
        self.given = kv_cache_spec, layer_names, vllm_config, device, extra


class Backend:
    @staticmethod
    def get_name():
        return "FLASH_ATTN"

    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder


def test_an_implementation_merges_by_ours_with_dcp_only():
    backend = with_our_combine("FLASH_ATTN", Backend)
    assert issubclass(backend, Backend) and backend.get_name() == "FLASH_ATTN"
    assert backend.get_impl_cls() is backend.get_impl_cls() and issubclass(backend.get_impl_cls(), Impl)
    assert backend.get_builder_cls() is Builder
    on, off = backend.get_impl_cls()(4, a2a=True), backend.get_impl_cls()(1)
    assert on.dcp_combine.func is dcp_combine and on.dcp_combine.args == (cp_lse_ag_out_rs,) and on.a2a
    assert on.dcp_combine.keywords == {"is_lse_base_on_e": False}
    assert off.dcp_combine.func is cp_lse_ag_out_rs


def test_a_builder_sets_the_merge_of_its_layers_once():
    group = object()

    def manager():
        return SimpleNamespace(combine=functools.partial(cp_lse_ag_out_rs, cp_group=group, is_lse_base_on_e=True))

    layers = {"a": SimpleNamespace(dcp_manager=manager()), "b": SimpleNamespace(dcp_manager=manager())}
    layers |= {"other": SimpleNamespace(dcp_manager=manager()), "off": SimpleNamespace(dcp_manager=None), "c": object()}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    backend = with_our_combine("TRITON_MLA", Backend)
    assert backend.get_impl_cls() is Impl
    for _ in range(2):  # vLLM makes one for each batch that runs at a time
        built = backend.get_builder_cls()("spec", ["a", "b", "off", "c"], vllm_config=config, device="cpu", extra=1)
        assert isinstance(built, Builder) and built.given == ("spec", ["a", "b", "off", "c"], config, "cpu", 1)
    for name in "ab":
        merge = layers[name].dcp_manager.combine
        assert merge.func is dcp_combine and merge.args == (cp_lse_ag_out_rs,)
        assert merge.keywords == {"cp_group": group, "is_lse_base_on_e": True}
    assert layers["other"].dcp_manager.combine.func is cp_lse_ag_out_rs


def test_other_names_are_no_backends():
    with pytest.raises(AttributeError, match="no attribute 'TREE_ATTN'"):
        dcp_backends.TREE_ATTN  # noqa: B018


def test_the_installed_vllm_has_these_backends():
    known = classes("vllm", "v1.attention.backends.registry")["AttentionBackendEnum"]
    assert known >= {*BY_IMPLEMENTATION, *BY_LAYER}


def test_the_installed_vllm_sets_what_is_replaced():
    for module in ("flash_attn", "flashinfer"):
        assert "self.dcp_combine = " in path("vllm", f"v1.attention.backends.{module}").read_text()
    layer = path("vllm", "model_executor.layers.attention.mla_attention").read_text()
    assert "self.dcp_manager.combine(" in layer and "self.dcp_manager = MLADCPManager(" in layer
