"""Collectives inside JAX programs, also under jit, scan, vmap and grad: `topocomm.jax.allreduce(x, operator, comm)`.

Arrays in, arrays out; the calls themselves run on the host, on plans of the communicator: docs/guide/jax.md.
"""

from topocomm.jax.installed import load_jax

load_jax()  # raises, and says what to install, where there is none

from topocomm.jax.functions import allgather, allreduce, alltoall, broadcast, reduce_scatter  # noqa: E402

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reduce_scatter"]
