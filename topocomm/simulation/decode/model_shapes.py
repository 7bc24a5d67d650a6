"""Sizes of models, as their published configurations have them."""

from __future__ import annotations

from dataclasses import dataclass

from topocomm.errors import PlanError


@dataclass(frozen=True)
class ModelShape:
    """A decoder: `layers` of attention and a gated MLP, and a head.

    Attributes:
        name: As users give it.
        hidden: Width of the residual stream; 0: attention alone, without projections, MLP or head.
        heads, kv_heads, head_dim: Of attention; `kv_heads` divides `heads`.
        intermediate: Width of the MLP, of three matrices.
        vocabulary: Rows of the head.
        element_bytes: Bytes of a weight and of a cached number.
        source: Where the sizes are from.

    Raises:
        PlanError: A size is impossible.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int = 0
    vocabulary: int = 0
    element_bytes: int = 2
    source: str = ""

    def __post_init__(self) -> None:
        sizes = (self.layers, self.heads, self.kv_heads, self.head_dim, self.element_bytes)
        if min(sizes) < 1 or min(self.hidden, self.intermediate, self.vocabulary) < 0 or self.heads % self.kv_heads:
            raise PlanError(
                f"model {self.name!r}: expected positive sizes, and heads as a multiple of kv_heads; got {self}"
            )

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of the keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def qkv_weights(self) -> int:
        """Numbers in the projections of queries, keys and values of a layer."""
        return self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def output_weights(self) -> int:
        """Numbers in the projection after attention of a layer."""
        return self.hidden * self.heads * self.head_dim

    @property
    def mlp_weights(self) -> int:
        """Numbers in the MLP of a layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Numbers in the head."""
        return self.hidden * self.vocabulary


_LLAMA = "Meta, config.json on Hugging Face, bfloat16"
MODELS = {
    each.name: each
    for each in (
        ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, source=_LLAMA),
        ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, source=_LLAMA),
        ModelShape("llama-3.1-405b", 126, 16384, 128, 8, 128, 53248, 128256, source=_LLAMA),
        ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, source=_LLAMA),
        ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, source="Alibaba, config.json on Hugging Face"),
        ModelShape("tree-attention-block", 1, 0, 16, 16, 128, source="arXiv 2408.04093; Zyphra/tree_attention"),
    )
}
"""Models by name."""


def model_shape(name: str) -> ModelShape:
    """Return the sizes of a model.

    Raises:
        PlanError: There is none of this name; the message lists them.
    """
    if name not in MODELS:
        raise PlanError(f"model {name!r}: expected one of {', '.join(MODELS)}")
    return MODELS[name]
