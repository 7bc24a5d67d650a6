"""What the parts of a layer take on one device, by bytes and by operations, whichever is longer."""

from __future__ import annotations

from dataclasses import dataclass

from topocomm.simulation.decode.datasheets import DeviceFigures
from topocomm.simulation.decode.model_shapes import ModelShape

PARTIAL_BYTES = 4
"""Bytes of a number of a partial: float32, as its sums are."""


@dataclass(frozen=True)
class LayerCosts:
    """A model on a device.

    Attributes:
        batch: Sequences, each with one new token and `context` earlier ones.
        efficiency: Share of the data sheet's figures that kernels reach.
        kernel_us: What a phase of computing takes beside, such as the launch of its kernels.
    """

    model: ModelShape
    device: DeviceFigures
    context: int
    batch: int = 1
    efficiency: float = 1.0
    kernel_us: float = 0.0

    def attention_us(self, tokens: float, *, head_share: float = 1.0) -> float:
        """Return the time of attention over `tokens` of each sequence, for a share of the heads."""
        model = self.model
        kv_heads = max(1.0, model.kv_heads * head_share)
        moved_bytes = self.batch * tokens * 2 * kv_heads * model.head_dim * model.element_bytes
        flops = 4 * self.batch * tokens * model.heads * head_share * model.head_dim
        return self._us(moved_bytes, flops)

    def weights_us(self, numbers: float) -> float:
        """Return the time of matrix products with so many weights, each read once; 0 for none."""
        return self._us(numbers * self.model.element_bytes, 2 * self.batch * numbers) if numbers else 0.0

    def merge_us(self, partials: int, heads: float) -> float:
        """Return the time to merge so many partials of each sequence, of so many heads."""
        return self._us(partials * self.partial_bytes(heads), 0.0)

    def partial_bytes(self, heads: float) -> int:
        """Bytes of a rank's partials of so many heads: the sum and the log of its weight, in float32."""
        return round(self.batch * heads * (self.model.head_dim + 1) * PARTIAL_BYTES)

    def lse_bytes(self, heads: float) -> int:
        """Bytes of one number for each head."""
        return round(self.batch * heads * PARTIAL_BYTES)

    def value_bytes(self, numbers: float) -> int:
        """Bytes of so many numbers of each sequence, in the model's type, up to a whole number of 4."""
        return -(-round(self.batch * numbers * self.model.element_bytes) // 4) * 4

    def _us(self, moved_bytes: float, flops: float) -> float:
        by_bytes = moved_bytes / (self.device.memory_gb_per_s * 1e3)
        by_flops = flops / (self.device.tflop_per_s * 1e6)
        return max(by_bytes, by_flops) / self.efficiency + self.kernel_us
