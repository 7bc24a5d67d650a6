"""Linear attention by its definition, token by token in float64, and inputs for its tests."""

import numpy as np

BATCH, HEADS, D, D_V = 2, 3, 5, 7


def recurrence(q, k, v, log_gates, state=None, scale=None):
    """(out, state after the last token): the definition, in float64."""
    q, k, v, log_gates = (np.asarray(x, np.float64) for x in (q, k, v, log_gates))
    gates = np.exp(log_gates if log_gates.ndim == 4 else log_gates[..., None])
    batch, heads, n, d = q.shape
    state = np.zeros((batch, heads, d, v.shape[3])) if state is None else np.asarray(state, np.float64)
    out = np.zeros(v.shape)
    for t in range(n):
        state = gates[:, :, t, :, None] * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        out[:, :, t] = np.einsum("bhi,bhij->bhj", q[:, :, t], state)
    return out * (d**-0.5 if scale is None else scale), state


def arrays(n, *, form="gla", seed=0, d=D, d_v=D_V):
    """(q, k, v, log gates) float32; most gates are gentle, some of them -50 and some -inf."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((BATCH, HEADS, n, width), dtype=np.float32) for width in (d, d, d_v))
    log_gates = -rng.exponential(0.05, k.shape if form == "gla" else k.shape[:3]).astype(np.float32)
    kind = rng.random(log_gates.shape)
    log_gates[kind < 0.02] = -50
    log_gates[kind < 0.01] = -np.inf
    return q, k, v, log_gates


def first_state(seed=0):
    return np.random.default_rng(seed).standard_normal((BATCH, HEADS, D, D_V), dtype=np.float32)


def shard(x, part):
    return tuple(array[:, :, part] for array in x)


def check(got, exact, x, state=None):
    """(out, state) within 2e-6 of the sum of what is added up, without signs."""
    q, k, v = (np.abs(np.asarray(array, np.float64)) for array in x[:3])
    total = recurrence(q, k, v, x[3], None if state is None else np.abs(state))
    for name, array, wanted, size in zip(("out", "state"), got, exact, total, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=0, atol=2e-6 * size.max(initial=1e-30), err_msg=name)
