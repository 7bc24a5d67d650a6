"""Operators with planted faults, and one that is right, for tests of what finds them."""

import numpy as np

from topocomm import Field, Kernel, Operator


def _add(left, right):
    return {"value": left["value"] + right["value"]}


ADD = Operator("add", (Field("value", dtype=np.float32),), _add, {"value": 0}, True)


def _logadd(left, right):
    return {"value": np.logaddexp(left["value"], right["value"])}


LOGADD = Operator("logadd", (Field("value", dtype=np.float32),), _logadd, {"value": -np.inf}, True)
"""ln(e^a + e^b) in NumPy: an operator that infinities are ordinary values of."""


def _off_kernel(layout):
    def bind(layout, buffer, rows, offsets):
        views = [layout.views(buffer, offset, rows)["value"] for offset in offsets]

        def fold(target):
            target["value"][...] = np.sum(views, axis=0)
            target["value"][-1] += 1

        return fold

    return Kernel("off/1", bind)


OFF = Operator("off", (Field("value", dtype=np.float32),), _add, {"value": 0}, True, _off_kernel)
"""Its kernel, which runs, is off by 1 at the end of every chunk; its combine, which checks, is right."""

_rng = np.random.default_rng(0)


def _dither(left, right):
    made = left["value"] + right["value"]
    made[made.size // 2] += np.float32(_rng.integers(1, 1000))
    return {"value": made}


DITHER = Operator("dither", (Field("value", dtype=np.float32),), _dither, {"value": 0}, True)
"""Adds noise to the middle of every chunk: no two calls agree."""


def _keep_left(left, right):
    """Rows of two numbers without a law of commutation: the first of the left, the second of the right."""
    return {"pair": np.stack([left["pair"][..., 0], right["pair"][..., 1]], axis=-1)}


ENDS = Operator("ends", (Field("pair", ("*rows", "two"), np.int64),), _keep_left, {"pair": 0}, default_dims={"two": 2})
"""Associative, not commutative: the first rank's first number, the last rank's second."""
