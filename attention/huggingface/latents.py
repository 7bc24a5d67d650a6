"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): all heads share one latent of a token.

transformers' layers give the cache a latent of `kv_lora_rank` numbers and a rotary key of `qk_rope_head_dim` for each
token, and make keys and values of all heads of what it returns, by `expand_kv`. While a model is sharded, `expand_kv`
hands the cached rows through, and attention is computed from them here, in the way that multiplies less:

- Few queries are absorbed: a head's query times its part of `kv_b_proj` has the product with a latent that it has with
  the head's key, so the rows are keys of one head and their latents its values. The other part of `kv_b_proj` comes
  after the merge.
- Many queries get the keys and values of all heads, made piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from attention import gpu
from attention.cache.kv_cache import ShardedKVCache
from attention.gpu.placement import on_gpu
from attention.huggingface.hf_layers import ShardedLayer
from attention.huggingface.ring_or_gather import GATHERED_BYTES
from attention.huggingface.split_pass import KeysAndValues
from attention.spec import Spec
from topocomm import OperatorError
from topocomm.extend import skipped_by_dynamo

SIZES = ("layer_idx", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Numbers that every such attention layer has."""


class Decode(Protocol):
    """Attention of a part of the pass's queries over the shards of all ranks."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, part: slice) -> torch.Tensor:
        """Return [batch, heads, q_len, d_v] of q's dtype."""


def latent_modules(model: torch.nn.Module) -> dict[int, Any]:
    """Return the attention layers that keep latents, by their number, known by their parts."""
    modules: Iterator[Any] = model.modules()
    return {
        module.layer_idx: module
        for module in modules
        if all(isinstance(getattr(module, name, None), int) for name in SIZES)
        and callable(getattr(module, "expand_kv", None))
        and isinstance(getattr(module, "kv_b_proj", None), torch.nn.Module)
    }


def keep_latents(latents: torch.Tensor, rotary: torch.Tensor) -> KeysAndValues:
    """What a layer calls in the place of its `expand_kv`."""
    return latents, rotary


@skipped_by_dynamo
class LatentLayer(ShardedLayer):  # type: ignore[no-untyped-call]
    """One layer of a `ShardedCache`: `keys` are rows of a latent and a rotary key, `values` the latents in them."""

    def __init__(self, store: ShardedKVCache, rank: int) -> None:
        super().__init__(store)
        self.rank = rank
        """Numbers of a latent."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep the owned ones of the next latents and rotary keys; returns all owned rows, and the latents in them."""
        rows = torch.cat([key_states, value_states], -1)
        return super().update(rows, rows[..., :0])

    def show(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As that of all layers."""
        keys, _ = super().show()
        self.values = keys[..., : self.rank]
        return keys, self.values


def attend_latents(
    module: Any, layer: LatentLayer, q: torch.Tensor, spec: Spec, present: Any, decode: Decode, *, canonical: bool
) -> torch.Tensor:
    """Return attention of the running pass, [batch, heads, q_len, v_head_dim] of q's dtype; collective.

    Args:
        module: The attention layer of transformers.
        layer: Its cache, which holds the keys of the pass.
        q: [batch, heads, q_len, qk_nope_head_dim + qk_rope_head_dim].
        spec: Which attention, with its scale.
        present: Which positions hold tokens, bool [batch, tokens so far]; None: all.
        decode: Where every rank has all queries.
        canonical: Whether the bits may not depend on how many rows a rank holds.

    Raises:
        OperatorError: Bits may not depend on that, and `kv_b_proj` is of a kind of which they would.
    """
    rows, width = layer.store.k if layer.whole is None else layer.whole[0], module.kv_lora_rank
    if not _is_absorbed(module, q, rows, canonical):
        if layer.split is not None:
            return layer.split.attend(q, _expanded(module, rows, q.shape[1]), rows.shape[2], spec, present)
        return decode(q, *_expand(module, rows, q.shape[1]), slice(None))
    of_keys, of_values = _up_projections(module, q)
    nope = module.qk_nope_head_dim
    # Not by a matrix product of broadcast weights, which copies them for every batch entry.
    q = torch.cat([torch.einsum("bhqn,hnr->bhqr", q[..., :nope], of_keys), q[..., nope:]], -1)
    if layer.split is not None:
        out = layer.split.attend(q, iter([(rows, rows[..., :width])]), rows.shape[2], spec, present)
    else:
        most = gpu.DECODE_QUERIES if on_gpu(q) else max(1, q.shape[2])
        parts = [slice(start, start + most) for start in range(0, q.shape[2], most)]
        out = torch.cat([decode(q[:, :, part], rows, rows[..., :width], part) for part in parts], 2)
    if out.dtype is torch.float32:
        return torch.einsum("bhqr,hvr->bhqv", out, of_values)
    # Of 16 bits torch's product takes thrice as long where the weight is transposed on the right; of 32 half as long.
    columns = out.permute(1, 3, 0, 2)
    return torch.bmm(of_values, columns.flatten(2)).view(-1, of_values.shape[1], *columns.shape[2:]).permute(2, 0, 3, 1)


def _is_absorbed(module: Any, q: torch.Tensor, rows: torch.Tensor, canonical: bool) -> bool:
    """Whether queries are absorbed, the same on all ranks that have as many."""
    projection = module.kv_b_proj
    parts = vars(projection)
    plain = type(projection) is torch.nn.Linear and parts["_parameters"].get("bias") is None
    plain = plain and not (parts["_forward_hooks"] or parts["_forward_pre_hooks"] or "forward" in parts)
    if canonical and not plain:
        raise OperatorError(
            f'sharded attention: order="canonical" multiplies by the weight of kv_b_proj, which in layer '
            f'{module.layer_idx} is no plain torch.nn.Linear but {type(projection).__name__}; use order="any"'
        )
    q_len: int = q.shape[2]
    if canonical or not plain:
        return canonical
    if on_gpu(q):
        return q_len <= gpu.DECODE_QUERIES and rows.shape[3] <= gpu.DECODE_WIDEST.get(q.element_size(), 0)
    rank: int = module.kv_lora_rank
    expanded: int = module.qk_nope_head_dim + module.v_head_dim
    # Products for a row and a head, beside those of the rotary part: 2 rank for an absorbed query; `expanded` for
    # another one, and once rank x expanded.
    return q_len * (2 * rank - expanded) <= rank * expanded


def _up_projections(module: Any, q: torch.Tensor) -> KeysAndValues:
    """The parts of `kv_b_proj`, in q's dtype: [heads, qk_nope_head_dim, rank] and [heads, v_head_dim, rank]."""
    weight: torch.Tensor = module.kv_b_proj.weight.to(q.dtype).view(q.shape[1], -1, module.kv_lora_rank)
    nope = module.qk_nope_head_dim
    return weight[:, :nope], weight[:, nope:]


def _expand(module: Any, rows: torch.Tensor, heads: int) -> KeysAndValues:
    """Keys and values of all heads, by the layer's own function."""
    rank = module.kv_lora_rank
    if rows.shape[2] == 0:  # which that does not take
        widths = module.qk_nope_head_dim + module.qk_rope_head_dim, module.v_head_dim
        keys, values = (rows.new_empty(rows.shape[0], heads, 0, width) for width in widths)
        return keys, values
    plain = type(module.kv_b_proj) is torch.nn.Linear
    inner = rows.to(module.kv_b_proj.weight.dtype) if plain else rows  # inside `torch.autocast` rows have its dtype
    keys, values = type(module).expand_kv(module, inner[..., :rank], inner[..., rank:])
    return keys.to(rows.dtype), values.to(rows.dtype)


def _expanded(module: Any, rows: torch.Tensor, heads: int) -> Iterator[KeysAndValues]:
    """The same, of consecutive pieces of the rows."""
    width = module.qk_nope_head_dim + module.qk_rope_head_dim + module.v_head_dim
    token_bytes = rows.shape[0] * heads * width * rows.element_size()
    step = max(1, GATHERED_BYTES // token_bytes)
    for start in range(0, rows.shape[2], step):
        yield _expand(module, rows[:, :, start : start + step], heads)
