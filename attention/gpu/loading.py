"""Kernels of attention are on the GPU before ranks wait for each other there; as topocomm's own calls have it.

Compiling a kernel takes seconds, and loading one may wait until the GPU is through with everything; where ranks are
threads of one process, that may keep the others from what a kernel of theirs waits for. So the first call of a kind
loads every kernel that later calls of the kind may launch, while the ranks stand together. Which ones these are
differs by masks and lengths, which ranks need not have alike; so whether ranks meet depends on neither. Pages of a size
that no rank had before make them meet again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from attention import gpu
from attention.arrays import Inputs
from attention.decode.communicators import state_of
from attention.decode.sharded import ShardedCall
from attention.gpu.decode.decode import interpreted
from attention.gpu.decode.decode_inputs import are_columns
from attention.gpu.masks import INTEGERS, device_visibility, masking_of
from attention.gpu.placement import capturing, on_gpu
from attention.visibility import Masking, Visibility
from topocomm import Communicator

DIVISOR = 16
"""Strides that this divides compile to wider loads than others."""


class Folds(NamedTuple):
    """Partials that a call folds at once: how many, and the dtype of their values."""

    states: int
    dtype: torch.dtype


def load_once(function: str, call: ShardedCall, *, moved: bool = False, folds: Folds | None = None) -> None:
    """Have the GPU load what a sharded call runs on this rank; collective at the first call of a kind.

    Args:
        function: Whose call it is.
        call: On every rank of the same kind: queries, heads, dims, dtypes and spec.
        moved: Whether keys are copied elsewhere before they are attended, without pages, their visibility with them.
        folds: What it folds; None: nothing.
    """
    inputs, comm = call.inputs, call.comm
    if not on_gpu(inputs.q):
        return
    shapes = (inputs.q.shape, inputs.k.shape[1], inputs.v.shape[3])
    kind = (function, *shapes, inputs.q.dtype, inputs.k.dtype, inputs.spec, moved, folds)
    met = [own := 0 if moved else _page_of(inputs)]

    def load() -> None:
        records = comm.allgather_bytes(np.array([own]).view(np.uint8))
        met.extend(int(record.view(np.int64)[0]) for record in records)
        _load(inputs, moved, folds, sorted({0, *met}))

    load_together(comm, (kind, own), inputs, load)
    _loaded(comm).update((kind, page) for page in met[1:])


def load_together(comm: Communicator, kind: Any, inputs: Inputs, run: Callable[[], object]) -> None:
    """Have all ranks run something once, while none of their calls waits on a GPU; collective for a new kind.

    The kind is the same on all ranks. `run` runs the kernels of a call; on the GPU it waits for no other rank.
    """
    if comm.size == 1 or kind in _loaded(comm) or capturing(inputs.q.device):
        return
    comm.barrier()  # what was called before is on the streams of all ranks, and comes to its end
    run()
    comm.barrier()
    _loaded(comm).add(kind)


def _loaded(comm: Communicator) -> set[Any]:
    """The kinds of calls whose kernels are loaded."""
    loaded: set[Any] = state_of(comm).setdefault("loaded", set())
    return loaded


class _Form(NamedTuple):
    """What chooses a kernel beside the kind of a call and the number of keys.

    Attributes:
        lengths: Their dtype; None: there are none.
        page: Keys of a page; 0: there are no pages.
    """

    mask: bool
    lengths: torch.dtype | None
    page: int


def _load(inputs: Inputs, moved: bool, folds: Folds | None, pages: list[int]) -> None:
    """Run every kernel that calls of this kind may launch, with pages of these sizes, once and on few keys.

    Triton's interpreter loads nothing: it runs the first kernel for the form of this call.
    """
    partial = inputs.empty_partial()
    if 0 not in inputs.out_shape:
        if not interpreted() and not moved:
            every = itertools.product((False, True), (None, *INTEGERS), pages)
            forms = [form for form in itertools.starmap(_Form, every) if form.lengths is not None or not form.page]
        elif not interpreted():
            always = inputs.spec.needs_positions and gpu.decodes(inputs)  # else no keys are attended without
            forms = [_Form(mask, None, 0) for mask in ((True,) if always else (False, True))]
        elif moved:
            forms = [_Form(inputs.visibility is not None, None, 0)]
        else:
            masking = masking_of(inputs.visibility, inputs.spec, inputs.q.device)
            lengths = None if masking.kv_lengths is None else masking.kv_lengths.dtype
            forms = [_Form(masking.kv_mask is not None, lengths, _page_of(inputs))]
        for form in forms:
            keys = _few_keys(inputs, form.page, moved)
            for k, v in itertools.islice(keys, 1 if interpreted() else None):
                gpu.load(_inputs_of(form, replace(inputs, k=k, v=v), moved), partial)
    if folds is not None:
        outs = partial.out.new_zeros((folds.states, *partial.out.shape), dtype=folds.dtype)
        lses = partial.lse.new_zeros((folds.states, *partial.lse.shape))
        gpu.fold(outs.unbind(0), lses.unbind(0))  # as calls have them: in one array, where not all are aligned


def _page_of(inputs: Inputs) -> int:
    """Keys of a page; 0: there are no pages."""
    return 0 if inputs.pages is None else inputs.k.shape[2]


def _few_keys(inputs: Inputs, page: int, moved: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values with strides as those of this call, and as those of dense arrays of any length."""
    k, v = inputs.k, inputs.v
    (_, kv_heads, _, d), d_v = k.shape, v.shape[3]
    shared = not moved and are_columns(v, k) and (d_v < d or k.numel() > 0)
    known = set()
    if not moved and k.numel() and page == _page_of(inputs):
        known.add(_kinds_of_strides(k, v))
        yield (k[:1], v[:1]) if page else (k[:, :, :1], v[:, :, :1])
    lead = (1 if page else inputs.q.shape[0], kv_heads)
    for rows in (page,) if page else range(1, DIVISOR + 1):
        like_k = torch.empty((*lead, rows, d), dtype=k.dtype, device="meta")
        like_v = like_k[..., :d_v] if shared else like_k.new_empty((*lead, rows, d_v))
        kinds = _kinds_of_strides(like_k, like_v)
        if kinds not in known:
            known.add(kinds)
            few = k.new_zeros(like_k.shape)
            yield few, few[..., :d_v] if shared else v.new_zeros(like_v.shape)


def _kinds_of_strides(*arrays: torch.Tensor) -> tuple[tuple[bool, bool], ...]:
    """What Triton compiles for."""
    return tuple((stride == 1, stride % DIVISOR == 0) for x in arrays for stride in x.stride()[:3])


def _inputs_of(form: _Form, few: Inputs, moved: bool) -> Inputs:
    q_shape, n, device = few.q.shape, few.k.shape[2], few.q.device
    masking = Masking(
        q_positions=torch.arange(q_shape[2]),
        kv_positions=torch.arange(n),
        kv_mask=torch.ones(n, dtype=torch.bool, device=device) if form.mask else None,
        kv_lengths=None if form.lengths is None else torch.ones(q_shape[0], dtype=form.lengths, device=device),
    )
    visibility: Visibility | None = device_visibility("load", q_shape, n, few.spec, masking, device)
    if moved:
        visibility = visibility.with_keys(visibility.keys) if form.mask and visibility is not None else None
    pages = torch.zeros((q_shape[0], 1), dtype=torch.int64, device=device) if form.page else None
    return replace(few, visibility=visibility, pages=pages)
