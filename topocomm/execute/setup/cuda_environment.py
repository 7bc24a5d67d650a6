"""What CUDA reads from the environment when it starts, and ranks that are threads of one process need otherwise.

Neither changes once CUDA has started in the process.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

MODULE_LOADING = "CUDA_MODULE_LOADING"
"""LAZY, the default since CUDA 12.2: a kernel of a library is loaded when it is first launched, which may wait until
the GPU is through with everything, also with a kernel that waits for another rank. EAGER: when CUDA starts, for seconds
and some hundred MB a process (CUDA Programming Guide, "Lazy Loading")."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Queues from a process to a GPU. Streams beyond them share queues: there a kernel waits for the one before it, also if
that is of another stream and waits for another rank (CUDA Programming Guide, "CUDA Environment Variables")."""
FEWEST_CONNECTIONS, DEFAULT_CONNECTIONS, MOST_CONNECTIONS = 1, 8, 32
"""What CUDA takes there; the default is that without MPS (CUDA Programming Guide, 5.2.3.2, of December 2025)."""
FOR_THREADS = {MODULE_LOADING: "EAGER", CONNECTIONS: str(MOST_CONNECTIONS)}


def prepare_for_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set, for ranks that are threads of this process; to be called before CUDA starts in it.

    Args:
        environment: The environment.
    """
    for name, value in FOR_THREADS.items():
        environment.setdefault(name, value)
