"""Requests of OpenAI's completion and chat protocols: what is read from their JSON, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topocomm import TopocommError

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of messages, and what chat templates call them."""
MOST_STOPS = 4
COMPLETION_TOKENS = 16
"""Tokens of a completion that does not say how many: OpenAI's default. A chat goes on to the end of the context."""
HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})
"""Fields that change no answer."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "presence_penalty": (0, 0.0),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields of the protocol that are not supported, with the values that ask for nothing."""


class RequestError(TopocommError, ValueError):
    """A request that is not answered, as HTTP and OpenAI's JSON say it.

    Attributes:
        status: The HTTP status.
        param: The field that is wrong, or None.
        code: OpenAI's name of the error, or None.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    @property
    def document(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kinds = {400: "invalid_request_error", 404: "invalid_request_error", 413: "invalid_request_error"}
        kind = "rate_limit_error" if self.status == 429 else kinds.get(self.status, "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class CompletionRequest:
    """One request.

    Attributes:
        prompts: Of a chat one list of messages {role, content}; else texts or lists of token ids.
        n: Answers to each prompt.
        max_tokens: Tokens of an answer at most; None: as the endpoint has it.
        temperature: 0: the most likely token.
        top_p: Least probability of the tokens that are drawn from.
        seed: Of the random generator; answer i takes seed + i. None: another one each time.
        stop: Texts before which an answer ends.
        include_usage: Whether a stream ends with counts of tokens.
    """

    chat: bool
    prompts: tuple[Any, ...]
    n: int
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool

    @property
    def rows(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.n


def parse(body: Any, *, chat: bool, model: str) -> CompletionRequest:
    """Return the request of a JSON body.

    Args:
        body: The JSON, read.
        chat: Whether it came to the chat endpoint.
        model: The name of the model that is served.

    Raises:
        RequestError: It asks for another model, or a field is wrong, unknown or not supported; the message names it.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}  # null: left out
    asked = given.pop("model", None)
    if not isinstance(asked, str):
        raise _wrong("model", "the name of the model", asked)
    if asked != model:
        raise RequestError(
            f"model {asked!r} is not served here, {model!r} is", status=404, param="model", code="model_not_found"
        )
    prompts = (_messages(given.pop("messages", None)),) if chat else _prompts(given.pop("prompt", None))
    stream = _flag(given, "stream")
    request = CompletionRequest(
        chat=chat,
        prompts=prompts,
        n=_whole(given, "n", 1, 1),
        max_tokens=_max_tokens(given, chat),
        temperature=_number(given, "temperature", 0, 2),
        top_p=_number(given, "top_p", 0, 1),
        seed=_whole(given, "seed", None, -(2**63)),
        stop=_stops(given.pop("stop", ())),
        stream=stream,
        include_usage=_include_usage(given.pop("stream_options", None), stream),
    )
    _refuse_others(given)
    return request


def _wrong(name: str, expected: str, got: Any) -> RequestError:
    shown = "nothing" if got is None else repr(got)[:80]
    return RequestError(f"{name}: expected {expected}, got {shown}", param=name)


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.pop(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _whole(given: dict[str, Any], name: str, default: int | None, low: int) -> Any:
    value = given.pop(name, default)
    if value is not default and (type(value) is not int or not low <= value < 2**63):
        raise _wrong(name, f"a whole number of at least {low}", value)
    return value


def _number(given: dict[str, Any], name: str, low: int, high: int) -> float:
    value = given.pop(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _wrong(name, f"a number from {low} to {high}", value)
    return float(value)


def _max_tokens(given: dict[str, Any], chat: bool) -> int | None:
    if chat and "max_completion_tokens" in given and "max_tokens" in given:
        raise RequestError("max_tokens: give it or max_completion_tokens, not both", param="max_tokens")
    name = "max_completion_tokens" if chat and "max_completion_tokens" in given else "max_tokens"
    tokens: int | None = _whole(given, name, None, 1)
    return tokens


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    fits = isinstance(stops, (list, tuple)) and len(stops) <= MOST_STOPS
    if not fits or not all(isinstance(stop, str) and stop for stop in stops):
        raise _wrong("stop", f"a text or up to {MOST_STOPS} of them, none empty", value)
    return tuple(stops)


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not stream:
        raise RequestError("stream_options: only with stream=true", param="stream_options")
    if not isinstance(value, dict) or set(value) - {"include_usage", "include_obfuscation"}:
        raise _wrong("stream_options", 'an object such as {"include_usage": true}', value)
    return _flag({name: flag for name, flag in value.items() if flag is not None}, "include_usage")


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "a list of messages", value)
    return [_message(f"messages[{place}]", message) for place, message in enumerate(value)]


def _message(name: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _wrong(name, "an object with role and content", message)
    if message.get("role") not in ROLES:
        raise _wrong(f"{name}.role", f"one of {', '.join(ROLES)}", message.get("role"))
    others = [field for field, value in message.items() if field not in ("role", "content", "name") and value]
    if others:
        raise RequestError(f"{name}.{others[0]}: this server takes role and content", param=f"{name}.{others[0]}")
    return {"role": ROLES[message["role"]], "content": _content(f"{name}.content", message.get("content"))}


def _content(name: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _wrong(name, "a text, or a list of parts of type text", content)
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong(f"{name}[{place}]", "a part of type text, the only one that this server takes", part)
    return "".join(part["text"] for part in content)


def _prompts(value: Any) -> tuple[Any, ...]:
    """One or several texts or lists of token ids."""
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    if not isinstance(prompts, list) or not prompts:
        raise _wrong("prompt", "a text, a list of texts, token ids, or lists of token ids", value)
    for place, prompt in enumerate(prompts):
        if not (isinstance(prompt, str) or _is_ids(prompt)):
            raise _wrong(f"prompt[{place}]", "a text or a list of token ids", prompt)
    return tuple(prompts)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _refuse_others(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        neutral = NEUTRAL.get(name, ())
        if name in HARMLESS or any(type(value) is type(one) and value == one for one in neutral):
            continue
        known = "is not supported by this server; leave it out" if neutral else "is no field of this request"
        raise RequestError(f"{name}: {repr(value)[:80]} {known}", param=name)
