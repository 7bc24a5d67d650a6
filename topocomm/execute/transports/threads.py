"""Ranks on threads of one process: messages are copied once, from the sender's buffer into the receiver's.

Used by `run_local`, by tests, and by jobs without a launcher. A send completes when it was received, so nothing
is buffered and nothing grows. One lock guards all mailboxes of a world; each rank sleeps on its own condition.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topocomm.execute.transports.transport import Batch, Message, Transport
from topocomm.operators.layout import Buffer

TURN_S = 0.0005


@dataclass(eq=False, slots=True)
class Post:
    """One side of a message that waits for the other; a note has no batch, but data."""

    batch: ThreadBatch | None
    message: Message
    tag: int
    data: bytes | None = None


class World:
    """The mailboxes of one group of ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.wake = [threading.Condition(self.lock) for _ in range(size)]
        self.sent: defaultdict[tuple[int, int], deque[Post]] = defaultdict(deque)
        self.wanted: defaultdict[tuple[int, int], deque[Post]] = defaultdict(deque)
        self.gone: set[int] = set()
        """Ranks whose thread has ended."""
        self.subsets: dict[tuple[int, tuple[int, ...]], World] = {}

    def leave(self, rank: int) -> None:
        """Record that the thread of `rank` has ended, in sub-worlds too."""
        with self.lock:
            self.gone.add(rank)
            inner = [(world, members) for (_, members), world in self.subsets.items() if rank in members]
        for world, members in inner:
            world.leave(members.index(rank))

    def transports(self) -> list[ThreadTransport]:
        """One transport per rank."""
        return [ThreadTransport(self, rank) for rank in range(self.size)]


class ThreadBatch(Batch):
    """Messages on one rank's buffer."""

    def __init__(
        self,
        transport: ThreadTransport,
        buffer: Buffer,
        sends: Sequence[Message],
        receives: Sequence[Message],
        tag: int,
    ) -> None:
        self.sends, self.receives = tuple(sends), tuple(receives)
        assert all(0 <= m.peer < transport.size for m in (*sends, *receives)), "messages are between ranks"
        self.views = {m: [buffer[o : o + n] for o, n in m.ranges] for m in (*self.sends, *self.receives)}
        self._world, self._rank = transport.world, transport.rank
        self._out = [Post(self, message, tag) for message in self.sends]
        self._in = [Post(self, message, tag) for message in self.receives]
        self.left: set[int] = set()

    def start(self) -> None:
        world, rank = self._world, self._rank
        with world.lock:
            self.left = {id(post) for post in (*self._out, *self._in)}
            for post in self._in:
                self._offer(post, world.wanted[post.message.peer, rank], world.sent[post.message.peer, rank])
            for post in self._out:
                self._offer(post, world.sent[rank, post.message.peer], world.wanted[rank, post.message.peer])

    def wait(self, timeout_s: float) -> bool:
        wake = self._world.wake[self._rank]
        with wake:
            return wake.wait_for(lambda: not self.left, timeout_s)

    def pending(self) -> tuple[list[Message], list[Message]]:
        with self._world.lock:
            sends = [post.message for post in self._out if id(post) in self.left]
            receives = [post.message for post in self._in if id(post) in self.left]
        return sends, receives

    def free(self) -> None:
        world, rank = self._world, self._rank
        with world.lock:
            lines = [(world.wanted[post.message.peer, rank], post) for post in self._in]
            lines += [(world.sent[rank, post.message.peer], post) for post in self._out]
            for line, post in lines:
                if post in line:
                    line.remove(post)
            self.left.clear()

    def _offer(self, post: Post, posts: deque[Post], partners: deque[Post]) -> None:
        """Match the oldest partner with this tag, or queue."""
        partner = next((p for p in partners if p.tag == post.tag and p.batch is not None), None)
        if partner is None or any(p.tag == post.tag for p in posts):
            posts.append(post)
            return
        partners.remove(partner)
        sender, receiver = (post, partner) if post in self._out else (partner, post)
        _copy(sender, receiver)
        for side in (post, partner):
            assert side.batch is not None, "only notes have no batch"
            side.batch.left.discard(id(side))
            if not side.batch.left:
                self._world.wake[side.batch._rank].notify_all()


class ThreadTransport(Transport):
    """One rank of a `World`."""

    name = "threads"
    in_process = True
    most_tag = 2**31 - 1

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size
        self.hosts = tuple(range(self.size))

    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        return ThreadBatch(self, buffer, sends, receives, tag)

    def post(self, peer: int, tag: int, data: bytes) -> None:
        with self.world.lock:
            note = Post(None, Message(peer, ((0, len(data)),)), tag, data)
            self.world.sent[self.rank, peer].append(note)
            self.world.wake[peer].notify_all()

    def take(self, peer: int, tag: int) -> bytes | None:
        with self.world.lock:
            line = self.world.sent[peer, self.rank]
            note = next((p for p in line if p.tag == tag and p.data is not None), None)
            if note is None:
                return None
            line.remove(note)
            return note.data

    def pause(self) -> None:
        with self.world.wake[self.rank]:
            self.world.wake[self.rank].wait(TURN_S)

    def failed(self) -> dict[int, str]:
        with self.world.lock:
            return dict.fromkeys(self.world.gone - {self.rank}, "has ended")

    def subset(self, members: Sequence[int], number: int) -> ThreadTransport | None:
        return self.shrink(members, number) if members else None

    def shrink(self, members: Sequence[int], number: int) -> ThreadTransport:
        key = (number, tuple(members))
        with self.world.lock:
            inner = self.world.subsets.setdefault(key, World(len(members)))
            gone = [members.index(rank) for rank in members if rank in self.world.gone]
        for rank in gone:
            inner.leave(rank)
        return ThreadTransport(inner, members.index(self.rank))

    def close(self, timeout_s: float) -> bool:
        """Do nothing: mailboxes belong to the world."""
        del timeout_s
        return True


def _copy(sender: Post, receiver: Post) -> None:
    assert sender.batch is not None
    assert receiver.batch is not None
    source = sender.batch.views[sender.message]
    target = receiver.batch.views[receiver.message]
    if [v.size for v in source] == [v.size for v in target]:
        for src, dst in zip(source, target, strict=True):
            np.copyto(dst, src)
        return
    joined = np.concatenate(source) if source else np.empty(0, np.uint8)
    start = 0
    for dst in target:
        part = joined[start : start + dst.size]
        dst[: part.size] = part
        start += part.size
