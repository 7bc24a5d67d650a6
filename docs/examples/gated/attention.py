"""Gated linear attention over a sequence that is sharded over ranks, by one exclusive scan whose order matters.

A token turns the state S [d, d_v] of a head into S_t = diag(a_t) S_(t-1) + k_t^T v_t and gives o_t = scale q_t S_t,
with gates a_t in [0, 1]: of each key dimension in GLA (Yang et al., 2023, section 4), one of each head in Mamba-2
(Dao and Gu, "Transformers are SSMs", 2024). So a rank's tokens together are an affine map of the state, and the scan
composes the maps of the ranks before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gated.chunks import Tokens, attend_chunks, summarise
from gated.state import DECAY, GATED_STATE, STATE
from topocomm import Communicator, OperatorError

NAME = "linear_attention"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
AXES = {
    "q": "[batch, heads, n, d]",
    "k": "[batch, heads, n, d]",
    "v": "[batch, heads, n, d_v]",
    "log_gates": "[batch, heads, n, d] or [batch, heads, n]",
    "initial_state": "[batch, heads, d, d_v]",
}


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    log_gates: Any,
    comm: Communicator | None = None,
    *,
    scale: float | None = None,
    initial_state: Any = None,
    return_state: bool = False,
) -> Any:
    """Causal gated linear attention of this rank's tokens over all tokens up to them, those of the ranks before too.

    Rank r holds the r-th contiguous part of the sequence. It computes what its part does to the state, an exscan with
    GATED_STATE gives the state before it, and with that its outputs: batch x heads x d x (d_v + 1) float32 per
    message, whatever the length. On one rank, or without `comm`, the same call computes a whole sequence, or with
    `initial_state` the next tokens of one (a decode step).

    Args:
        q: Queries [batch, heads, n, d] of this rank's tokens, float32, float16 or bfloat16, NumPy or torch (CPU);
            n may differ between ranks and may be 0.
        k: Keys [batch, heads, n, d].
        v: Values [batch, heads, n, d_v].
        log_gates: Natural logarithms of the gates, at most 0: [batch, heads, n, d] (GLA) or [batch, heads, n]
            (Mamba-2). -inf forgets all that was before the token, 0 keeps it: zeros are plain linear attention.
        comm: The ranks; None: these tokens are the whole sequence.
        scale: Factor on q; None takes 1 / sqrt(d).
        initial_state: The state before the first token of the sequence, float32 [batch, heads, d, d_v]; None: 0.
            Read on rank 0 only, so others may give None.
        return_state: Return (out, state); the same on all ranks.

    Returns:
        out [batch, heads, n, d_v] of q's kind and dtype. With `return_state` also the state after the last token of
        the whole sequence, float32 [batch, heads, d, d_v] of q's kind: what decoding goes on from, the same bits on
        every rank (a broadcast from the last one).

    Collective: every rank calls it, with the same batch, heads, d and d_v.

    Raises:
        OperatorError: This rank's arguments do not fit; gradients are required, which are not covered.
        MismatchError: Ranks differ in batch, heads, d or d_v.
        DeadlineError, RankFailedError: Another rank did not come, or failed.

    Accuracy: states and sums are float32, decays e^(a sum of log gates). What a token holds, NaN too, reaches no
    earlier token. Memory beyond the result: the states between chunks of 64 tokens, float32 [batch, heads, n / 64, d,
    d_v], and some copies of 512 KiB of the inputs, or of one chunk of all heads where that is more.
    """
    tokens = _check(q, k, v, log_gates, scale)
    first = _check_state(initial_state, tokens)
    summary = summarise(tokens)
    before = first
    if comm is not None:
        # What was before the sequence is part of what rank 0 does to the state: then no other rank needs it.
        after = summary.end_from(first) if comm.rank == 0 else summary.end
        prefix = comm.exscan({DECAY: summary.decay, STATE: after}, GATED_STATE)
        before = first if comm.rank == 0 else prefix[STATE]
    out = torch.empty(tokens.v.shape, dtype=tokens.q.dtype)
    attend_chunks(tokens, summary, before, out)
    if not return_state:
        return _like(q, out)
    state = summary.end_from(before)
    if comm is not None:
        state = comm.broadcast(state, root=comm.size - 1)
    return _like(q, out), _like(q, state)


def _check(q: Any, k: Any, v: Any, log_gates: Any, scale: float | None) -> Tokens:
    """The arrays as tensors on their memory.

    Raises:
        OperatorError: Shapes, dtypes, devices or gates do not fit; the message names the argument.
    """
    given = {"q": q, "k": k, "v": v, "log_gates": log_gates}
    x = {name: _tensor(name, array) for name, array in given.items()}
    shape, gates = x["q"].shape, x["log_gates"]
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in x.items())
    if x["k"].shape != shape or x["v"].shape[:3] != shape[:3]:
        raise OperatorError(f"{NAME}: q and k must have one shape, and v agree in [batch, heads, n], got {shapes}")
    if shape[3] == 0:
        raise OperatorError(f"{NAME}: the head dim d must be at least 1, got {shapes}")
    if gates.shape not in (shape, shape[:3]):
        raise OperatorError(f"{NAME}: log_gates must have the shape of k, or that without d, got {shapes}")
    largest = float(gates.max()) if gates.numel() else 0.0
    if not largest <= 0:  # NaN too
        raise OperatorError(
            f"{NAME}: log_gates must be natural logarithms of gates from 0 to 1, so at most 0, got {largest}; "
            "pass logsigmoid(x), or log(gates)"
        )
    scale = 1 / math.sqrt(shape[3]) if scale is None else scale
    return Tokens(x["q"], x["k"], x["v"], gates if gates.ndim == 4 else gates[..., None], scale)


def _check_state(initial_state: Any, tokens: Tokens) -> torch.Tensor:
    """The state before the first token.

    Raises:
        OperatorError: It is not one for these tokens.
    """
    shape = (*tokens.k.shape[:2], tokens.k.shape[3], tokens.v.shape[3])
    if initial_state is None:
        return torch.zeros(shape)
    state = _tensor("initial_state", initial_state)
    if state.shape != shape or state.dtype != torch.float32:
        raise OperatorError(
            f"{NAME}: initial_state must be float32 {list(shape)}, as return_state=True gives it, "
            f"got {state.dtype} {list(state.shape)}"
        )
    return state


def _tensor(name: str, array: Any) -> torch.Tensor:
    if not isinstance(array, torch.Tensor | np.ndarray):
        raise OperatorError(f"{NAME}: {name} must be a NumPy array or torch tensor, got {type(array).__name__}")
    x = torch.as_tensor(array)
    if x.ndim != 4 and not (name == "log_gates" and x.ndim == 3):
        raise OperatorError(f"{NAME}: {name} must be {AXES[name]}, got shape {list(x.shape)}")
    if x.dtype not in DTYPES:
        raise OperatorError(f"{NAME}: {name} must be float32, float16 or bfloat16, got {x.dtype}; convert it first")
    if x.device.type != "cpu":
        raise OperatorError(f"{NAME}: {name} is on {x.device}; only CPU tensors are covered: pass {name}.cpu()")
    if x.requires_grad:
        raise OperatorError(f"{NAME}: {name} requires gradients; pass {name}.detach() or use torch.no_grad()")
    return x


def _like(given: Any, tensor: torch.Tensor) -> Any:
    """The tensor as the kind of array that was given; no copy."""
    return tensor.numpy() if isinstance(given, np.ndarray) else tensor
