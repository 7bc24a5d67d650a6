"""Folds of values in a buffer of a device, in Triton's interpreter on the CPU."""

import numpy as np
import torch

from topocomm import bind_device_fold, bind_device_folds


def packed(layout, values, extra=0):
    """A buffer that holds values and room for `extra` more, and the offsets of all."""
    rows = layout.rows
    size = -(-layout.packed_bytes(rows) // 64) * 64 + 64
    junk = torch.Generator().manual_seed(0)  # nowhere the same, so that a copy of junk shows
    buffer = torch.randint(0, 256, ((len(values) + extra) * size,), dtype=torch.uint8, generator=junk)
    offsets = [size * slot for slot in range(len(values) + extra)]
    for offset, value in zip(offsets, values, strict=False):
        for name, view in layout.views(buffer.numpy(), offset, rows).items():
            view[...] = np.asarray(value[name]).reshape(view.shape)
    return buffer, offsets


def unpacked(layout, buffer, offset):
    views = layout.views(buffer.numpy(), offset, layout.rows)
    return {f.name: views[f.name].reshape((*layout.leading, *f.row_shape)).copy() for f in layout.fields}


def device_fold(operator, layout, values, *, into=None):
    """What `bind_device_folds` makes of the values; `into` is the operand whose memory the result replaces."""
    buffer, offsets = packed(layout, values, extra=1)
    *operands, target = offsets
    target = target if into is None else operands[into]
    before = buffer.clone()
    with np.errstate(all="ignore"):
        bind_device_folds(operator, layout, buffer, [(layout.rows, operands, target)])()
    after = buffer.clone()
    used = slice(target, target + layout.packed_bytes(layout.rows))
    after[used] = before[used]
    assert torch.equal(after, before), "wrote beside the result"
    return unpacked(layout, buffer, target)


def device_fold_into(operator, layout, values, targets):
    """What `bind_device_fold` writes to tensors of a caller's own."""
    buffer, offsets = packed(layout, values)
    with np.errstate(all="ignore"):
        bind_device_fold(operator, layout, buffer, layout.rows, offsets)(targets)
    return targets
