"""Which requests run, wait, end and are turned away; their tokens are those of plain transformers."""

import threading

import pytest

from attention.cache.shards import ShardMap
from attention.huggingface import enable
from attention.serve.answers import Progress
from attention.serve.orders import Orders
from attention.serve.prompts import tokenize
from attention.serve.protocol import RequestError, parse
from attention.serve.row_batches import BLOCK_TOKENS, RowBatches
from attention.serve.scheduler import Limits, Scheduler, Ticket, follow
from attention.serve.serve_metrics import ServeMetrics
from tests.attention.serve.serving import eventually
from topocomm import run_local

CONTEXT = 100


@pytest.fixture
def scheduler(reference):
    ends = frozenset({reference.model.generation_config.eos_token_id})
    return Scheduler(reference.tokenizer, ends, 1.0, Limits(3, 4, CONTEXT), ServeMetrics(), threading.Event())


def ticket(reference, prompt, deliver, **options):
    request = parse({"model": "m", "prompt": prompt, "temperature": 0, **options}, chat=False, model="m")
    return Ticket(request, tokenize(request, reference.tokenizer, vocabulary=99, context=CONTEXT), deliver)


def serve(scheduler, model, *, ranks=2, seen=None):
    """Serve on threads until the scheduler is asked to end."""

    def work(comm):
        with enable(model, comm, shards=ShardMap(comm.size, block_size=BLOCK_TOKENS)) as sharding:
            batches, orders = RowBatches(model, sharding.cache), Orders(comm)
            if comm.rank:
                return follow(orders, batches, threading.Event())
            if seen is not None:
                begin = batches.prefill
                batches.prefill = lambda place, *more: seen.append(place) or begin(place, *more)
            return scheduler.run(orders, batches)

    thread = threading.Thread(target=run_local, args=(work,), kwargs={"ranks": ranks}, daemon=True)
    thread.start()
    return thread


def end(scheduler, thread):
    scheduler._end.set()
    scheduler.inbox.put(None)
    thread.join(60)
    assert not thread.is_alive()


def test_more_requests_than_rows(scheduler, reference):
    prompts = [f"{number} some text that is long enough" * (1 + number % 2) for number in range(5)]
    limits = [30, 30, 40, 20, 10]
    news, places = [[] for _ in prompts], []
    for prompt, limit, heard in zip(prompts, limits, news, strict=True):
        scheduler.submit(ticket(reference, prompt, heard.append, max_tokens=limit))
    thread = serve(scheduler, reference.model, seen=places)
    eventually(lambda: all(heard and heard[-1].finish_reason for heard in news))
    end(scheduler, thread)
    for prompt, limit, heard in zip(prompts, limits, news, strict=True):
        assert "".join(one.text for one in heard) == reference.text(prompt, limit)
        assert [one.tokens for one in heard] == [*range(1, len(heard) + 1)]
        assert len(heard) == len(reference.tokens(reference.ids(prompt), limit))
    assert 0 in places[1:], "one joined another"
    scheduler.check_room(7)


def test_a_batch_ends_within_the_context(scheduler, reference):
    """A prompt that the first batch has no positions for begins a second one, which the next one joins."""
    places, heard = [], []
    for length, limit in ((62, 38), (90, 10), (5, 5)):
        scheduler.submit(ticket(reference, "a" * length, heard.append, max_tokens=limit))
    thread = serve(scheduler, reference.model, seen=places)
    eventually(lambda: len([one for one in heard if one.finish_reason]) == 3)
    end(scheduler, thread)
    assert places == [0, 1, 1]


def test_places_are_given_back(scheduler, reference):
    """By requests that end, that are given up while they run or wait, and that fail."""
    heard = []
    tickets = [ticket(reference, "some text", heard.append, max_tokens=90) for _ in range(7)]
    for one in tickets:
        scheduler.submit(one)
    with pytest.raises(RequestError) as caught:
        scheduler.submit(ticket(reference, "one more", heard.append))
    assert caught.value.status == 429
    thread = serve(scheduler, reference.model)
    eventually(lambda: heard)
    for one in (tickets[0], tickets[5]):
        one.over = True
    eventually(lambda: free(scheduler, 2))
    end(scheduler, thread)
    left = len(heard)
    scheduler.fail(RequestError("lost", status=503), waiting=False)
    errors = [one for one in heard[left:] if not isinstance(one, Progress)]
    assert 1 <= len(errors) <= 3, "those that ran"
    scheduler.fail(RequestError("lost", status=503), waiting=True)
    assert len([one for one in heard[left:] if not isinstance(one, Progress)]) == 5
    scheduler.check_room(7)
    scheduler.refusal = "it ends"
    with pytest.raises(RequestError, match="it ends"):
        scheduler.check_room(1)


def free(scheduler, rows):
    try:
        scheduler.check_room(rows)
    except RequestError:
        return False
    return True
