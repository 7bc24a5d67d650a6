"""What is read from a request's JSON, and every refusal names its field."""

import pytest

from attention.serve.protocol import NEUTRAL, RequestError, parse

USER = {"role": "user", "content": "x"}
CHAT = {"model": "m", "messages": [USER]}
TEXT = {"model": "m", "prompt": "x"}


def test_what_a_chat_asks_for():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = parse(
        {
            "model": "m",
            "messages": [{"role": "developer", "content": parts, "name": "n"}, USER],
            "max_completion_tokens": 7,
            "temperature": 0,
            "top_p": 0.5,
            "seed": -3,
            "stop": "end",
            "n": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": "somebody",
            "tools": None,
        },
        chat=True,
        model="m",
    )
    assert asked.prompts == ([{"role": "system", "content": "ab"}, USER],)
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.seed) == (7, 0.0, 0.5, -3)
    assert (asked.stop, asked.n, asked.rows, asked.stream, asked.include_usage) == (("end",), 2, 2, True, True)


def test_defaults_and_forms_of_prompts():
    asked = parse(TEXT, chat=False, model="m")
    assert (asked.n, asked.max_tokens, asked.temperature, asked.top_p, asked.seed) == (1, None, 1.0, 1.0, None)
    assert (asked.stop, asked.stream, asked.include_usage) == ((), False, False)
    for given, prompts in (([1, 2], ([1, 2],)), (["a", "b"], ("a", "b")), ([[1], [2, 3]], ([1], [2, 3])), ("", ("",))):
        assert parse({**TEXT, "prompt": given}, chat=False, model="m").prompts == prompts


def test_fields_that_ask_for_nothing_are_taken():
    for name, values in NEUTRAL.items():
        for value in values:
            parse({**TEXT, name: value}, chat=False, model="m")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", {"model": 3}),
        ("messages", {"messages": None}),
        ("messages[0]", {"messages": ["x"]}),
        ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("messages[0].tool_calls", {"messages": [{**USER, "tool_calls": [{}]}]}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": True}),
        ("max_tokens", {"max_tokens": 1, "max_completion_tokens": 1}),
        ("max_completion_tokens", {"max_completion_tokens": 1.5}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": "hot"}),
        ("top_p", {"top_p": 1.1}),
        ("seed", {"seed": 2**63}),
        ("n", {"n": 0}),
        ("stop", {"stop": ["a", ""]}),
        ("stop", {"stop": list("abcde")}),
        ("stream", {"stream": 1}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options", {"stream": True, "stream_options": {"other": True}}),
        ("logprobs", {"logprobs": True}),
        ("presence_penalty", {"presence_penalty": 0.5}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("top_k", {"top_k": 3}),
    ],
)
def test_refusals_name_the_field(field, change):
    with pytest.raises(RequestError) as caught:
        parse({**CHAT, **change}, chat=True, model="m")
    assert (caught.value.status, caught.value.param) == (400, field)
    assert caught.value.document["error"]["message"].startswith(f"{field}: ")


@pytest.mark.parametrize("prompt", [None, [], 3, [[]], ["a", 3], [1, True], [["a"]], {}])
def test_prompts_that_are_none(prompt):
    with pytest.raises(RequestError) as caught:
        parse({**TEXT, "prompt": prompt}, chat=False, model="m")
    assert caught.value.param.startswith("prompt")


def test_other_models_and_other_json():
    with pytest.raises(RequestError) as caught:
        parse({**CHAT, "model": "other"}, chat=True, model="m")
    assert (caught.value.status, caught.value.document["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(RequestError, match="must be a JSON object"):
        parse([], chat=True, model="m")
    assert RequestError("x", status=429).document["error"]["type"] == "rate_limit_error"
    assert RequestError("x", status=503).document["error"]["type"] == "server_error"
