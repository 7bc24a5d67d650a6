"""Verification of a sharded call: what must hold of its result is checked on every rank, and one head computed again.

Of all heads: the ranks' weights exp(local lse - lse) add up to 1 (so lse is that of all keys, each counted once), lse
is not below any rank's own, all ranks hold the same bits and gave the same queries, and where positions are given,
every key is on one rank. Of one head, another in every verified call: attention over all keys in float64, from the
same keys and values. What is checked of a call on a GPU is waited for, in the calls that are verified alone.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

from attention import gpu
from attention.decode.agreement import coverage_fault, key_ranges
from attention.decode.communicators import state_of
from attention.decode.sharded import ShardedCall
from attention.gpu.placement import capturing, on_gpu
from attention.partial import Partial
from topocomm import Communicator, MismatchError, OperatorError

EVERY = 64
"""Calls of which one is verified with verify=True: in float64, one head of 32 costs about as much as a whole call."""
TOLERANCE = 1e-5
"""Of out, relative to the largest of the ranks' partial outs; of lse and of the sum of weights."""
ROUNDING = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""What rounding adds to it: on the wire, in the result, and of the weights of many queries on a GPU."""
CHUNK = 1 << 14
"""Most keys whose scores are in memory at a time."""
DIGEST_BYTES = 16
Exact = tuple[NDArray[np.float64], NDArray[np.float64]]


def due(comm: Communicator, verify: bool | int, device: torch.device) -> bool:
    """Return whether this call is one of those to be verified; counts calls.

    Raises:
        OperatorError: `verify` is neither a truth value nor a number of calls, or a CUDA graph is captured.
    """
    if verify is False:
        return False
    if capturing(device):
        raise OperatorError("verify reads results back, which no CUDA graph does; capture the call with verify=False")
    every = EVERY if verify is True else verify
    if not isinstance(every, int) or every < 1:
        raise OperatorError(f"verify must be True, False or a number of calls of which one is verified, got {verify!r}")
    state = state_of(comm)
    number: int = state.get("asked_to_verify", 0)
    state["asked_to_verify"] = number + 1
    return number % every == 0


class Verification:
    """The verification of one call: its facts before the merge, and the check after it."""

    def __init__(self, call: ShardedCall, wire: str) -> None:
        state = state_of(call.comm)
        turn: int = state.get("verified", 0)
        state["verified"] = turn + 1
        batch, heads = call.inputs.q.shape[:2]
        self.call, self.rounding = call, ROUNDING[getattr(torch, wire)]
        if on_gpu(call.inputs.q) and not gpu.decodes(call.inputs):  # the prefill kernel rounds weights
            self.rounding += ROUNDING[call.inputs.k.dtype]
        self.entry, self.head = turn // heads % batch, turn % heads
        self.lse = np.empty(0, np.float32)
        self.keys = key_ranges("tree_decode", call.inputs, call.options.masking)

    def note(self, lse: torch.Tensor) -> None:
        """This rank's own lse [batch, heads, q_len], before the merge."""
        self.lse = lse.detach().cpu().numpy().astype(np.float32).copy()

    def check(self, merged: Partial) -> None:
        """Check the merged partial; collective.

        Raises:
            MismatchError: It is wrong; on every rank.
        """
        comm = self.call.comm
        misplaced = coverage_fault(comm, self.call.inputs, self.keys)
        whole = merged.lse.shape == self.lse.shape
        exact = exact_head(self.call, self.entry, self.head)
        inputs, visibility = self.call.inputs, self.call.inputs.visibility
        asked = _digest(inputs.q, *(() if visibility is None else (visibility.low, visibility.high)))
        form = np.dtype(
            [
                ("lse", np.float32, self.lse.shape),
                ("result", np.uint8, DIGEST_BYTES),
                ("asked", np.uint8, DIGEST_BYTES),
                ("exact out", np.float64, exact[0].shape),
                ("exact lse", np.float64, exact[1].shape),
            ]
        )
        record = b"".join([self.lse.tobytes(), _digest(*merged), asked, *(x.tobytes() for x in exact)])
        records = np.stack(comm.allgather_bytes(np.frombuffer(record, np.uint8))).view(form)[:, 0]
        verdict = misplaced or self._of_all(merged, records["lse"])
        verdict = verdict or self._of_one(merged, records["exact out"], records["exact lse"])
        for name, difference in (("asked", "were given other queries or q_positions"), ("result", "hold other bits")):
            differing = np.flatnonzero((records[name] != records[name][0]).any(1)).tolist()
            if differing and (name == "asked" or whole):
                verdict = f"ranks {differing} {difference} than rank 0"
                break
        flags = comm.allgather_bytes(np.array([verdict is not None], np.uint8))
        wrong = [rank for rank, flag in enumerate(flags) if flag[0]]
        if wrong:
            why = verdict or f"verification failed on ranks {wrong}, which say why"
            raise MismatchError(f"rank {comm.rank}: tree_decode: {why}")

    def _of_all(self, merged: Partial, lses: NDArray[np.float32]) -> str | None:
        """Say what is wrong with lse, given the ranks' own [ranks, batch, heads, q_len]; None: nothing."""
        own = lses[:, :, self.call.heads].astype(np.float64)
        lse = merged.lse.cpu().numpy().astype(np.float64)
        with np.errstate(invalid="ignore"):
            weights = np.where(own == -np.inf, 0.0, np.exp(own - lse))
            low = (lse < own - TOLERANCE * np.maximum(1, abs(own))).any(0)
        some = (own > -np.inf).any(0)
        off = abs(weights.sum(0) - some) > TOLERANCE * np.maximum(1, np.where(some, abs(lse), 0)) * len(own)
        for bad, fault in (
            (low, "is below a rank's own"),
            (off | (some & np.isnan(weights.sum(0))), "is not that of all keys"),
        ):
            if bad.any():
                entry, head, query = np.argwhere(bad)[0].tolist()
                sums = f"the ranks' weights add up to {weights.sum(0)[entry, head, query]:.7g}"
                return f"lse of entry {entry}, head {head + self.call.heads.start}, query {query} {fault}: {sums}"
        return None

    def _of_one(self, merged: Partial, outs: NDArray[np.float64], lses: NDArray[np.float64]) -> str | None:
        """Say what is wrong with the head that was computed again, if this rank has it; None: nothing.

        `outs` [ranks, q_len, d_v] and `lses` [ranks, q_len] are what it is over the keys of each rank.
        """
        if not self.call.heads.start <= self.head < self.call.heads.stop:
            return None
        top = lses.max(0)
        weights = np.exp(lses - np.where(top == -np.inf, 0, top))
        total = np.where(weights.sum(0) == 0, 1, weights.sum(0))
        exact = (weights[..., None] * outs).sum(0) / total[:, None]
        place = self.entry, self.head - self.call.heads.start
        got, largest = merged.out[place].cpu().numpy().astype(np.float64), abs(outs).max(initial=0.0)
        off = abs(got - exact).max(initial=0.0)
        limit = (TOLERANCE + self.rounding) * largest
        if off > limit or np.isnan(off):
            return (
                f"head {self.head} of entry {self.entry} is wrong by {off:.3g}, {limit:.3g} would be rounding: "
                "it was computed again in float64"
            )
        return None


def _digest(*tensors: torch.Tensor) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for tensor in tensors:
        if tensor.numel() == 0:  # of no heads: strides may be anything
            continue
        digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.digest()


def exact_head(call: ShardedCall, entry: int, head: int) -> Exact:
    """Return (out [q_len, d_v], lse [q_len]) of one head over this rank's keys in float64, in chunks of keys."""
    inputs, spec = call.inputs, call.inputs.spec
    q_len, d_v = inputs.q.shape[2], inputs.v.shape[3]
    q = inputs.q[entry, head].double() * inputs.scale
    kv_head = head // (inputs.q.shape[1] // inputs.k.shape[1])
    out, total, top = q.new_zeros(q_len, d_v), q.new_zeros(q_len), q.new_full((q_len,), -torch.inf)
    for start in range(0, inputs.n, CHUNK):
        part = slice(start, min(start + CHUNK, inputs.n))
        k, v = (x[kv_head].double() for x in inputs.entry(entry, part))
        scores = q @ k.T
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if inputs.visibility is not None:
            low, high, queries, keys = inputs.visibility.entry(entry, slice(None), part)
            if spec.alibi_slopes is not None:
                scores -= spec.alibi_slopes[head] * (queries[:, None] - keys).abs()
            hidden = (keys < low[:, None]) | (keys > high[:, None])
            scores.masked_fill_(hidden, -torch.inf)
            v = v.masked_fill(hidden.all(0)[:, None], 0)
        higher = torch.maximum(top, scores.amax(1))
        base = torch.where(higher == -torch.inf, 0, higher)
        weights, decay = torch.exp(scores - base[:, None]), torch.exp(top - base)
        total, out, top = total * decay + weights.sum(1), out * decay[:, None] + weights @ v, higher
    some = torch.where(total == 0, 1, total)
    lse = torch.where(top == -torch.inf, 0, top) + total.log()
    return (out / some[:, None]).cpu().numpy(), lse.cpu().numpy()
