"""The HTTP endpoints of servers on 1, 2 and 3 ranks, asked by OpenAI's client and by hand."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from attention.serve.http_server import MOST_BODY_BYTES
from tests.attention.serve.serving import POSITIONS, Server, eventually

CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Name three trees, and where they grow."},
]
TEXT = "a letter after another, and then some more of them"
GREEDY = {"model": "tiny", "temperature": 0}
pytestmark = pytest.mark.alone


@pytest.fixture(
    scope="module", params=[2, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def server(request, served):
    weights = "sharded" if request.param == 3 else "replicated"
    with Server(served, "--max-batch=6", "--max-queue=4", f"--weights={weights}", ranks=request.param) as running:
        running.ranks = request.param
        yield running


@pytest.fixture
def client(server):
    with server.client() as made:
        yield made


def test_a_chat(client, reference):
    made = client.chat.completions.create(**GREEDY, messages=CHAT, max_tokens=40)
    tokens = reference.tokens(reference.ids(CHAT), 40)
    choice = made.choices[0]
    assert choice.message.content == reference.text(CHAT, 40)
    assert choice.message.role == "assistant"
    assert choice.finish_reason == ("stop" if len(tokens) < 40 else "length")
    assert made.usage.prompt_tokens == len(reference.ids(CHAT))
    assert made.usage.completion_tokens == len(tokens)
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    assert made.model == "tiny"


def test_a_stream_says_the_same(client, reference):
    options = {**GREEDY, "messages": CHAT, "max_completion_tokens": 40, "stream": True}
    chunks = list(client.chat.completions.create(**options, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == reference.text(
        CHAT, 40
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert len(chunks) > 40
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**options))


def test_prompts_of_every_form(client, reference):
    ids = reference.ids(TEXT)
    for prompt, texts in (
        (TEXT, [TEXT]),
        (ids, [TEXT]),
        ([TEXT, "another"], [TEXT, "another"]),
        ([ids, [5]], [TEXT, [5]]),
    ):
        made = client.completions.create(**GREEDY, prompt=prompt, max_tokens=12)
        assert [choice.text for choice in made.choices] == [reference.text(text, 12) for text in texts]
        assert [choice.index for choice in made.choices] == [*range(len(texts))]
        assert made.usage.prompt_tokens == sum(len(reference.ids(text)) for text in texts)
    assert client.completions.create(**GREEDY, prompt=TEXT).usage.completion_tokens <= 16


def test_answers_do_not_depend_on_what_shares_their_batch(server, client, reference):
    """Nine requests of several lengths, begun one after the other: some share a batch, some wait."""
    prompts = [f"{place} {TEXT * (1 + place % 3)}"[: 15 + 13 * place] for place in range(9)]
    limits = [60 - 5 * place for place in range(9)]

    def ask(place):
        time.sleep(0.03 * place)
        made = client.completions.create(**GREEDY, prompt=prompts[place], max_tokens=limits[place])
        return made.choices[0].text, made.usage.completion_tokens

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(ask, range(9)))
    expected = [reference.tokens(reference.ids(prompt), limit) for prompt, limit in zip(prompts, limits, strict=True)]
    assert [count for _, count in answers] == [len(tokens) for tokens in expected]
    texts = [reference.text(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]
    assert [text for text, _ in answers] == texts
    assert any(len(tokens) < limit for tokens, limit in zip(expected, limits, strict=True)), "one ends by itself"


def test_seeds_and_several_answers(client):
    options = {"model": "tiny", "prompt": TEXT, "max_tokens": 20, "temperature": 1.5, "top_p": 0.9}
    alone = client.completions.create(**options, seed=5).choices[0].text
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(client.completions.create, **options, seed=9)
        three = client.completions.create(**options, seed=4, n=3)
    assert others.result().choices[0].text != alone
    texts = [choice.text for choice in three.choices]
    assert texts[1] == alone, "answer i of a seed is that of seed + i"
    assert len(set(texts)) == 3
    assert three.usage.prompt_tokens == len(TEXT)


def test_stop_texts(client, reference):
    whole = reference.text(TEXT, 40)
    stop = whole[11:14]
    at = whole.find(stop)
    for stream in (False, True):
        made = client.completions.create(**GREEDY, prompt=TEXT, max_tokens=40, stop=[stop, "never"], stream=stream)
        pieces = [made] if not stream else list(made)
        assert "".join(piece.choices[0].text for piece in pieces) == whole[:at]
        assert pieces[-1].choices[0].finish_reason == "stop"
    assert client.completions.create(**GREEDY, prompt=TEXT, max_tokens=40, stop=stop).usage.completion_tokens == at + 3


def test_an_answer_that_ends_by_itself(client, reference):
    prompt = next(text for text in map(str, range(50, 99)) if len(reference.tokens(reference.ids(text), 60)) < 60)
    made = client.completions.create(**GREEDY, prompt=prompt, max_tokens=60)
    assert made.choices[0].finish_reason == "stop"
    assert made.choices[0].text == reference.text(prompt, 60)
    assert made.usage.completion_tokens == len(reference.tokens(reference.ids(prompt), 60))


@pytest.mark.parametrize(
    ("status", "param", "change"),
    [
        (404, "model", {"model": "other"}),
        (400, "messages", {"messages": []}),
        (400, "temperature", {"temperature": 3}),
        (400, "tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (400, "n", {"n": 7}),
        (400, "messages", {"max_tokens": POSITIONS}),
    ],
)
def test_bad_requests(client, status, param, change):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**GREEDY, "messages": CHAT, "max_tokens": 3, **change})
    assert caught.value.status_code == status
    assert caught.value.body["param"] == param
    assert param in caught.value.body["message"]


def test_bodies_that_are_no_request(server):
    for body in (b"{", b"[" * 100_000, b"\xff"):
        answer = server.post("/v1/completions", body)
        assert answer.status == 400
        assert "not JSON" in answer.json["error"]["message"]
    answer = server.post("/v1/completions", b" " * (MOST_BODY_BYTES + 1))
    assert answer.status == 413
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert server.get("/v1/nothing").json["error"]["message"] == "GET /v1/nothing: Not Found"
    assert server.get("/v1/completions").status == 405


def test_models_and_health(server, client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "topocomm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert server.get("/health").json == {"status": "ok"}


def test_metrics(server, client):
    names = ("topocomm_tokens_total", "topocomm_prompt_tokens_total", "topocomm_time_to_first_token_seconds_count")
    names += (
        "topocomm_time_per_token_seconds_count",
        'topocomm_requests_total{endpoint="/v1/completions",status="200"}',
    )
    before = [server.figure(name) for name in names]
    made = client.completions.create(**GREEDY, prompt=[TEXT, "x"], max_tokens=9).usage
    after = [server.figure(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        made.completion_tokens, len(TEXT) + 1, 2, made.completion_tokens - 2, 1,
    ]  # fmt: skip
    assert server.figure("topocomm_ranks") == server.ranks
    assert server.figure("topocomm_queue_length") == 0


LONG = {**GREEDY, "prompt": TEXT, "max_tokens": 1900}


def idle(server):
    return server.figure("topocomm_running_answers") == server.figure("topocomm_queue_length") == 0


@pytest.mark.long
def test_a_client_that_leaves_ends_its_request(server, client):
    left = 'topocomm_requests_total{endpoint="/v1/completions",status="499"}'
    whole = client.completions.create(**LONG).usage.completion_tokens
    before, tokens = server.figure(left), server.figure("topocomm_tokens_total")
    stream = client.completions.create(**LONG, stream=True)
    next(iter(stream))
    stream.close()
    connection = server.begin("/v1/completions", LONG)
    eventually(lambda: server.figure("topocomm_running_answers") == 1)
    connection.close()
    eventually(lambda: idle(server) and server.figure(left) == before + 2)
    assert server.figure("topocomm_tokens_total") - tokens < whole, "neither of them came to its end"


def test_a_full_queue(server, client):
    begun = [server.begin("/v1/completions", LONG) for _ in range(10)]
    eventually(lambda: server.figure("topocomm_running_answers") == 6)
    eventually(lambda: server.figure("topocomm_queue_length") == 4)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(**GREEDY, prompt=TEXT)
    assert caught.value.response.headers["Retry-After"] == "1"
    assert caught.value.body["code"] == "queue_full"
    for connection in begun:
        connection.close()
    eventually(lambda: idle(server))
    assert json.loads(server.post("/v1/completions", {**GREEDY, "prompt": "x", "max_tokens": 1}).text)["choices"]
