"""Prompts as tokens, and the room that is left for an answer."""

import pytest

from attention.serve.prompts import tokenize
from attention.serve.protocol import RequestError, parse

SIZES = {"vocabulary": 50, "context": 60}


def made(reference, body, *, chat=False, tokenizer=None, **sizes):
    request = parse({"model": "m", **body}, chat=chat, model="m")
    return tokenize(request, tokenizer or reference.tokenizer, **{**SIZES, **sizes})


def test_texts_ids_and_chats(reference):
    assert made(reference, {"prompt": ["ab", "c"]}) == [(reference.ids("ab"), 16), (reference.ids("c"), 16)]
    assert made(reference, {"prompt": [5, 49], "max_tokens": 58}) == [([5, 49], 58)]
    messages = [{"role": "user", "content": "hi"}]
    ids = reference.ids(messages)
    assert reference.tokenizer.decode(ids) == "u:hi\na:"
    assert made(reference, {"messages": messages}, chat=True) == [(ids, 60 - len(ids))]
    assert made(reference, {"prompt": "a" * 50}) == [(reference.ids("a" * 50), 10)], "what is left, by default"


def test_refusals(reference):
    class Strict:
        chat_template = "some"

        def apply_chat_template(self, *_, **__):
            import jinja2

            raise jinja2.TemplateError("roles must alternate")

    class Plain:
        chat_template = None

    user = {"messages": [{"role": "user", "content": "hi"}]}
    for body, options, match in (
        ({"prompt": ""}, {}, "prompt: has no token"),
        ({"prompt": [50]}, {}, "expected token ids from 0 to 49, got 50"),
        ({"prompt": "a" * 50, "max_tokens": 11}, {}, "50 prompt tokens and 11 new ones are more than the 60"),
        ({"prompt": "a" * 60}, {}, "60 prompt tokens and 1 new ones"),
        (user, {"chat": True, "tokenizer": Plain()}, "no chat template; use /v1/completions"),
        (user, {"chat": True, "tokenizer": Strict()}, "refuses them: roles must alternate"),
    ):
        with pytest.raises(RequestError, match=match):
            made(reference, body, **options)
