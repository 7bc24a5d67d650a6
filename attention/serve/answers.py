"""Answers in the JSON of OpenAI's protocols, whole and in pieces."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attention.serve.protocol import CompletionRequest


@dataclass(frozen=True)
class Progress:
    """News of one answer of a request.

    Attributes:
        text: What it goes on with.
        tokens: Tokens so far.
        finish_reason: "stop", "length", or None: it goes on.
    """

    index: int
    text: str
    tokens: int
    finish_reason: str | None


class Answers:
    """The answers to one request."""

    def __init__(self, request: CompletionRequest, model: str, prompt_tokens: int) -> None:
        self._chat, self._usage_wanted, self._prompt_tokens = request.chat, request.include_usage, prompt_tokens
        name = f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._head = {"id": name, "created": int(time.time()), "model": model}
        self._texts = [""] * request.rows
        self._tokens = [0] * request.rows
        self._reasons: list[str | None] = [None] * request.rows

    @property
    def done(self) -> bool:
        """Whether all answers have ended."""
        return None not in self._reasons

    def take(self, news: Progress) -> None:
        """Note news of one answer."""
        self._texts[news.index] += news.text
        self._tokens[news.index] = news.tokens
        self._reasons[news.index] = news.finish_reason

    def whole(self) -> dict[str, Any]:
        """The document with all answers."""
        choices = [self._choice(index, text) for index, text in enumerate(self._texts)]
        for choice, reason in zip(choices, self._reasons, strict=True):
            choice["finish_reason"] = reason
        return self._document("chat.completion" if self._chat else "text_completion", choices) | {"usage": self._usage}

    def opening(self) -> Sequence[dict[str, Any]]:
        """The documents with which a stream begins: of a chat, who speaks."""
        roles = [{"role": "assistant", "content": ""}] * len(self._texts) if self._chat else []
        return [self._chunk([_delta(index, role, None)]) for index, role in enumerate(roles)]

    def chunks(self, news: Progress) -> Sequence[dict[str, Any]]:
        """The documents of a stream for news of one answer."""
        if not self._chat:
            choice = self._choice(news.index, news.text) | {"finish_reason": news.finish_reason}
            return [self._chunk([choice])] if news.text or news.finish_reason else []
        made = [self._chunk([_delta(news.index, {"content": news.text}, None)])] if news.text else []
        return [*made, self._chunk([_delta(news.index, {}, news.finish_reason)])] if news.finish_reason else made

    def closing(self) -> Sequence[dict[str, Any]]:
        """The documents with which a stream ends: counts of tokens, where they are wanted."""
        return [self._chunk([]) | {"usage": self._usage}] if self._usage_wanted else []

    @property
    def _usage(self) -> dict[str, int]:
        made = sum(self._tokens)
        total = self._prompt_tokens + made
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": made, "total_tokens": total}

    def _choice(self, index: int, text: str) -> dict[str, Any]:
        if not self._chat:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": None}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        document = self._document("chat.completion.chunk" if self._chat else "text_completion", choices)
        return document | ({"usage": None} if self._usage_wanted else {})

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": choices}


def _delta(index: int, delta: dict[str, str], reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
