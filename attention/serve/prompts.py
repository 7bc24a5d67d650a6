"""Prompts as token ids, and how long their answers may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import jinja2

from attention.serve.protocol import COMPLETION_TOKENS, CompletionRequest, RequestError


class Prompt(NamedTuple):
    """A prompt's token ids, and the most tokens that an answer to it may have."""

    ids: list[int]
    limit: int


def tokenize(request: CompletionRequest, tokenizer: Any, *, vocabulary: int, context: int) -> list[Prompt]:
    """Return the prompts of a request.

    Args:
        request: The request.
        tokenizer: Of transformers.
        vocabulary: Token ids that the model knows.
        context: Tokens of a prompt and its answer at most.

    Raises:
        RequestError: A prompt is empty, too long or not for this model.
    """
    field = "messages" if request.chat else "prompt"
    prompts = []
    for given in request.prompts:
        ids = _chat_ids(given, tokenizer) if request.chat else _ids(given, tokenizer, vocabulary)
        if not ids:
            raise RequestError(f"{field}: has no token", param=field)
        prompts.append(Prompt(ids, _limit(request, len(ids), context, field)))
    return prompts


def _ids(prompt: str | list[int], tokenizer: Any, vocabulary: int) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    outside = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if outside is not None:
        raise RequestError(f"prompt: expected token ids from 0 to {vocabulary - 1}, got {outside}", param="prompt")
    return prompt


def _chat_ids(messages: list[dict[str, str]], tokenizer: Any) -> list[int]:
    if not tokenizer.chat_template:
        raise RequestError(
            "messages: this model's tokenizer has no chat template; use /v1/completions with a prompt", param="messages"
        )
    try:
        made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    except (jinja2.TemplateError, TypeError) as error:
        raise RequestError(f"messages: the model's chat template refuses them: {error}", param="messages") from error
    return list(made["input_ids"])


def _limit(request: CompletionRequest, tokens: int, context: int, field: str) -> int:
    left = context - tokens
    wanted = request.max_tokens
    if wanted is None:
        wanted = max(1, left if request.chat else min(left, COMPLETION_TOKENS))
    if wanted > left:
        raise RequestError(
            f"{field}: {tokens:,} prompt tokens and {wanted:,} new ones are more than the {context:,} of the context; "
            "shorten the prompt or lower max_tokens",
            param=field,
            code="context_length_exceeded",
        )
    return wanted
