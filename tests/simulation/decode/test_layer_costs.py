"""Times of parts of a layer: bytes or operations, whichever is longer."""

import pytest

from topocomm.simulation.decode.datasheets import DeviceFigures
from topocomm.simulation.decode.layer_costs import LayerCosts
from topocomm.simulation.decode.model_shapes import ModelShape

SHAPE = ModelShape("small", 1, 64, 8, 2, 16, 128, 100)


def costs(memory=100.0, tflops=1000.0, **changes):
    return LayerCosts(SHAPE, DeviceFigures("x", memory, tflops, 1.0, "test"), 1000, **changes)


def test_attention_reads_keys_and_values_once():
    read_bytes = 1000 * 2 * 2 * 16 * 2
    assert costs().attention_us(1000) == pytest.approx(read_bytes / 100e3)
    assert costs(batch=3).attention_us(1000) == pytest.approx(3 * read_bytes / 100e3)
    assert costs().attention_us(1000, head_share=0.5) == pytest.approx(read_bytes / 2 / 100e3)
    # A rank with less than one key head reads a whole one.
    assert costs().attention_us(1000, head_share=0.25) == pytest.approx(read_bytes / 2 / 100e3)


def test_operations_count_where_they_take_longer():
    assert costs(tflops=1e-3).attention_us(1000) == pytest.approx(4 * 1000 * 8 * 16 / 1e3)
    assert costs(tflops=1e-3, batch=2).weights_us(500) == pytest.approx(2 * 2 * 500 / 1e3)


def test_weights_are_read_once_for_all_sequences():
    assert costs(batch=7).weights_us(5000) == pytest.approx(2 * 5000 / 100e3)
    assert costs().weights_us(0) == 0.0


def test_efficiency_and_kernels():
    assert costs(efficiency=0.5, kernel_us=2.0).weights_us(5000) == pytest.approx(2 * 2 * 5000 / 100e3 + 2.0)


def test_bytes_of_what_is_sent():
    own = costs(batch=2)
    assert own.partial_bytes(8) == 2 * 8 * 17 * 4
    assert own.lse_bytes(8) == 2 * 8 * 4
    assert own.value_bytes(3) == 12
    assert LayerCosts(SHAPE, own.device, 1).value_bytes(3) == 8
    assert own.merge_us(4, 8) == pytest.approx(4 * own.partial_bytes(8) / 100e3)
