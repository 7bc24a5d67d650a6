"""Rank 0's part of serving: which requests run, in which batch, and what becomes of their tokens.

Prompts wait in the order of their arrival until there are rows for them. One prompt passes between two steps at
most, so that running answers wait for one prompt at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import torch

from attention.serve.answers import Progress
from attention.serve.orders import Kind, Order, Orders
from attention.serve.prompts import Prompt
from attention.serve.protocol import CompletionRequest, RequestError
from attention.serve.row_batches import RowBatch, RowBatches
from attention.serve.sampling import Sampler
from attention.serve.serve_metrics import ServeMetrics
from attention.serve.text_stream import TextStream

BEAT_S = 0.5
"""Seconds between two orders while there is nothing to do."""

Deliver = Callable[[Progress | RequestError], None]


@dataclass(eq=False)
class Ticket:
    """A request among the others.

    Attributes:
        deliver: Called in the model's thread with news of its answers, or with the error that ends it.
        over: Set by any thread to end it.
    """

    request: CompletionRequest
    prompts: list[Prompt]
    deliver: Deliver
    arrived_s: float = field(default_factory=time.monotonic)
    over: bool = False
    unfinished: int = 0
    """Answers that wait or run."""


@dataclass(eq=False)
class Row:
    """One answer that is being generated."""

    ticket: Ticket
    index: int
    left: int
    """Tokens that it may still have."""
    sampler: Sampler
    stream: TextStream
    tokens: int = 0
    latest: int = 0
    """The token that has not passed through the model yet."""
    latest_s: float = 0.0
    ended: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it wants another token."""
        return not (self.ended or self.ticket.over)


@dataclass(frozen=True)
class Limits:
    """Bounds of a server: rows that run, rows that wait, tokens of a prompt with its answer."""

    running: int
    waiting: int
    context: int


class Scheduler:
    """The requests of a server.

    Args:
        tokenizer: Of transformers; used in the model's thread only.
        end_tokens: Tokens that end an answer.
        penalty: `repetition_penalty` of the model's generation configuration.
        limits: The bounds.
        metrics: What is counted.
        end: Whether this process was asked to end.

    Attributes:
        refusal: Why no request is taken now, or None.
    """

    def __init__(
        self,
        tokenizer: Any,
        end_tokens: frozenset[int],
        penalty: float,
        limits: Limits,
        metrics: ServeMetrics,
        end: threading.Event,
    ) -> None:
        self._tokenizer, self._end_tokens, self._penalty = tokenizer, end_tokens, penalty
        self.limits, self.metrics, self._end = limits, metrics, end
        self.inbox: SimpleQueue[Ticket | None] = SimpleQueue()
        """New requests; None wakes the model's thread."""
        self.refusal: str | None = None
        self._waiting: deque[tuple[Ticket, int]] = deque()
        """Prompts by the number that each has in its request."""
        self._rows: list[list[Row]] = []
        """Of every batch."""
        self._lock = threading.Lock()
        self._under_way = 0
        """Answers that wait or run."""

    def check_room(self, rows: int) -> None:
        """Raise the RequestError with which a request of so many answers is turned away now, if it is."""
        if self.refusal is not None:
            raise RequestError(self.refusal, status=503)
        most = self.limits.running + self.limits.waiting
        if self._under_way + rows > most:
            raise RequestError(
                f"{self._under_way} answers run or wait, {rows} more would be over the limit of {most}; try again",
                status=429,
                code="queue_full",
            )

    def submit(self, ticket: Ticket) -> None:
        """Put a request into the queue; from any thread.

        Raises:
            RequestError: The queue is full, or the server ends.
        """
        with self._lock:
            self.check_room(ticket.request.rows)
            self._under_way += ticket.request.rows
            ticket.unfinished = ticket.request.rows
        self.inbox.put(ticket)

    def run(self, orders: Orders, batches: RowBatches) -> None:
        """Serve until a rank is asked to end.

        Raises:
            RankFailedError, DeadlineError: As for any call; `fail` then ends what runs.
        """
        asked, busy = False, False
        while not asked:
            self._receive(wait=not busy)
            order = self._next_prompt(batches) if self._waiting else None
            if order is None and not batches.batches:
                _, asked = orders.exchange(Order(Kind.NOTHING), end=self._end.is_set(), idle=True)
                busy = False
                continue
            if order is not None:
                asked |= self._prefill(order, orders, batches)
            for place in reversed(range(len(batches.batches))):
                asked |= self._step(place, orders, batches)
            busy = True
        orders.exchange(Order(Kind.END), end=True, idle=not batches.batches)

    def fail(self, error: RequestError, *, waiting: bool) -> None:
        """End the requests that run, and those that wait too if asked, with an error."""
        self._receive(wait=False)
        tickets = {row.ticket: None for rows in self._rows for row in rows}
        if waiting:
            tickets |= {ticket: None for ticket, _ in self._waiting}
        self._rows = []
        self._waiting = deque(one for one in self._waiting if one[0] not in tickets)
        for ticket in tickets:
            if not ticket.over and ticket.unfinished:
                ticket.over = True
                ticket.deliver(error)
            self._leave(ticket, ticket.unfinished)
        self._count()

    def _receive(self, *, wait: bool) -> None:
        """Take in new requests; wait for one a while if there is nothing else to do."""
        wait = wait and not self._waiting and not self._end.is_set()
        try:
            while True:
                ticket = self.inbox.get(block=wait, timeout=BEAT_S)
                wait = False
                if ticket is not None:
                    self._waiting.extend((ticket, number) for number in range(len(ticket.prompts)))
        except Empty:
            for one in [one for one in self._waiting if one[0].over]:
                self._waiting.remove(one)
                self._leave(one[0], one[0].request.n)
            self._count()

    def _next_prompt(self, batches: RowBatches) -> Order | None:
        """The order for the first prompt that waits, if there are rows for it."""
        running = sum(row.goes_on for rows in self._rows for row in rows)
        if not self._waiting or running + self._waiting[0][0].request.n > self.limits.running:
            return None
        ticket, number = self._waiting[0]
        place = self._batch_for(ticket.prompts[number], batches)
        return Order(Kind.PREFILL, place, ticket.request.n, tuple(ticket.prompts[number].ids))

    def _batch_for(self, prompt: Prompt, batches: RowBatches) -> int:
        """The batch that a prompt's answers join: the last one in which all come to their ends within the context."""
        if not batches.may_join:
            return len(batches.batches)
        for place in reversed(range(len(batches.batches))):
            left = max([row.left for row in self._rows[place] if row.goes_on], default=0)
            if _slots(batches.batches[place], prompt) + max(left, prompt.limit) <= self.limits.context:
                return place
        return len(batches.batches)

    def _prefill(self, order: Order, orders: Orders, batches: RowBatches) -> bool:
        ticket, number = self._waiting.popleft()
        if order.batch == len(self._rows):
            self._rows.append([])
        rows = [self._row(ticket, number, copy) for copy in range(order.rows)]
        self._rows[order.batch] += rows  # a rank that is lost ends them too
        _, asked = orders.exchange(order, end=self._end.is_set(), idle=not batches.batches)
        logits = batches.prefill(order.batch, [*order.numbers], order.rows)
        self.metrics.prompt_tokens.inc(len(order.numbers))
        now_s = time.monotonic()
        for row in rows:
            self._take(row, logits)
            row.latest_s = now_s
            self.metrics.first_token_s.observe(now_s - ticket.arrived_s)
        return asked

    def _row(self, ticket: Ticket, number: int, copy: int) -> Row:
        request, prompt = ticket.request, ticket.prompts[number]
        index = number * request.n + copy
        seed = None if request.seed is None else request.seed + index
        sampler = Sampler(request.temperature, request.top_p, seed, self._penalty, prompt.ids)
        return Row(ticket, index, prompt.limit, sampler, TextStream(self._decode, request.stop))

    def _step(self, place: int, orders: Orders, batches: RowBatches) -> bool:
        """One token for every row of a batch that goes on; those that ended leave it."""
        rows = self._rows[place]
        for row in rows:
            if row.ticket.over and not row.ended:
                self._end_row(row)
        kept = [number for number, row in enumerate(rows) if not row.ended]
        numbers = (*kept, *(rows[number].latest for number in kept))
        _, asked = orders.exchange(Order(Kind.STEP, place, 0, numbers), end=self._end.is_set(), idle=False)
        logits = batches.step(place, kept, [*numbers[len(kept) :]])
        rows[:] = [rows[number] for number in kept]
        if not rows:
            del self._rows[place]
        now_s = time.monotonic()
        for row, scores in zip(rows, logits, strict=True):
            self.metrics.token_s.observe(now_s - row.latest_s)
            row.latest_s = now_s
            self._take(row, scores)
        return asked

    def _take(self, row: Row, logits: torch.Tensor) -> None:
        """Choose a row's next token and say what it adds."""
        row.latest = row.sampler.choose(logits)
        row.tokens += 1
        row.left -= 1
        self.metrics.tokens.inc()
        ends = row.latest in self._end_tokens
        text = "" if ends else row.stream.add(row.latest)
        if not row.stream.stopped and (ends or not row.left):
            text += row.stream.finish()
        reason = "stop" if ends or row.stream.stopped else "length" if not row.left else None
        if not row.ticket.over:
            row.ticket.deliver(Progress(row.index, text, row.tokens, reason))
        if reason is not None:
            self._end_row(row)

    def _end_row(self, row: Row) -> None:
        row.ended = True
        self._leave(row.ticket, 1)

    def _leave(self, ticket: Ticket, rows: int) -> None:
        with self._lock:
            self._under_way -= rows
            ticket.unfinished -= rows

    def _count(self) -> None:
        self.metrics.queue.set(sum(ticket.request.n for ticket, _ in self._waiting))
        self.metrics.running.set(sum(not row.ended for rows in self._rows for row in rows))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def follow(orders: Orders, batches: RowBatches, end: threading.Event) -> None:
    """Do what rank 0 orders, on another rank, until it says that the server ends."""
    while True:
        order, _ = orders.exchange(None, end=end.is_set(), idle=not batches.batches)
        if order.kind == Kind.END:
            return
        if order.kind == Kind.PREFILL:
            batches.prefill(order.batch, [*order.numbers], order.rows)
        elif order.kind == Kind.STEP:
            kept = len(order.numbers) // 2
            batches.step(order.batch, [*order.numbers[:kept]], [*order.numbers[kept:]])


def _slots(batch: RowBatch, prompt: Prompt) -> int:
    return max(batch.slots, len(prompt.ids))
