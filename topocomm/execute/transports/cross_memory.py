"""Whether ranks of one host may read each other's memory: cross memory attach, process_vm_readv of Linux.

Systems allow it between processes of one user, and may not: Yama's ptrace_scope, seccomp in containers, processes that
are not dumpable. So it is tried, once, by all ranks in all directions.
"""

from __future__ import annotations

import os

import numpy as np

from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.transport import GATHER_TAG

TOKEN_BYTES = 16
WHAT = "the trial of reading other ranks' memory"


def can_read_peers(waiting: Waiting) -> bool:
    """Return whether every rank can read the memory of all others of its host; tried in the first call. Collective."""
    transport = waiting.transport
    if transport.reads_peers is None:
        token = np.frombuffer(os.urandom(TOKEN_BYTES), np.uint8)
        note = np.array([os.getpid(), token.ctypes.data], np.int64).tobytes() + token.tobytes()
        notes = gather_notes(waiting, note, tag=GATHER_TAG, what=WHAT)
        own = transport.hosts[transport.rank]
        right = all(_reads(note) for note, host in zip(notes, transport.hosts, strict=True) if host == own)
        verdicts = gather_notes(waiting, bytes([right]), tag=GATHER_TAG, what=WHAT)  # when all have read the token
        transport.reads_peers = all(verdict == b"\x01" for verdict in verdicts)
        del token
    return transport.reads_peers


def read_error() -> int:
    """Return 0 if this process can read its own memory by the call that reads others', else why not, as an errno.

    Raises:
        ImportError: There is no compiled part.
    """
    from topocomm.native._native import read_process

    byte = np.zeros(1, np.uint8)
    return read_process(os.getpid(), byte.ctypes.data, np.zeros(1, np.uint8))


def _reads(note: bytes) -> bool:
    from topocomm.native._native import read_process

    process, address = np.frombuffer(note[:16], np.int64).tolist()
    into = np.zeros(TOKEN_BYTES, np.uint8)
    return read_process(process, address, into) == 0 and into.tobytes() == note[16:]
