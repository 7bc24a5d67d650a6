"""OpenAI's HTTP endpoints over a `Scheduler`: an ASGI application, and the thread that runs it beside the model's."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from attention.serve.answers import Answers, Progress
from attention.serve.prompts import Prompt, tokenize
from attention.serve.protocol import CompletionRequest, RequestError, parse
from attention.serve.scheduler import Scheduler, Ticket

MOST_BODY_BYTES = 4 << 20
RETRY_AFTER_S = 1
CLIENT_LEFT = 499
"""Status, in the counters only, of a request whose client left."""
GRACE_S = 5
"""Seconds in which answers under way are sent when the server ends."""

Value = TypeVar("Value")
Events = asyncio.Queue[Progress | RequestError]


class ClientLeftError(Exception):
    """The client has closed its connection."""


class Endpoints:
    """What is asked of the server.

    Args:
        scheduler: Where requests go.
        tokenizer: Of transformers; used in one thread of its own.
        model: The model's name.
        vocabulary: Token ids that it knows.
    """

    def __init__(self, scheduler: Scheduler, tokenizer: Any, model: str, vocabulary: int) -> None:
        self._scheduler, self._tokenizer, self._model, self._vocabulary = scheduler, tokenizer, model, vocabulary
        self._metrics = scheduler.metrics
        self._began_s = int(time.time())
        self._reader = ThreadPoolExecutor(1, "requests")

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._text, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._one_model),
            Route("/health", self._health),
            Route("/metrics", self._figures),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error, RequestError: _request_error, Exception: _unexpected}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _one_model(self, request: Request) -> Response:
        if request.path_params["model"] != self._model:
            raise RequestError(
                f"only {self._model!r} is served here", status=404, param="model", code="model_not_found"
            )
        return JSONResponse(self._card())

    async def _health(self, _: Request) -> Response:
        refusal = self._scheduler.refusal
        return JSONResponse({"status": refusal or "ok"}, 200 if refusal is None else 503)

    async def _figures(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _chat(self, request: Request) -> Response:
        return await self._complete(request, chat=True)

    async def _text(self, request: Request) -> Response:
        return await self._complete(request, chat=False)

    def _card(self) -> dict[str, Any]:
        return {"id": self._model, "object": "model", "created": self._began_s, "owned_by": "topocomm"}

    async def _complete(self, request: Request, *, chat: bool) -> Response:
        """Answer a request for completions, whole or as a stream, and count it."""
        try:
            return await self._answer(request, chat=chat)
        except RequestError as error:
            self._counted(request, error.status)
            raise
        except ClientLeftError:
            self._counted(request, CLIENT_LEFT)
            return Response(status_code=CLIENT_LEFT)

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        body, loop = await _body(request), asyncio.get_running_loop()
        asked, prompts = await loop.run_in_executor(self._reader, self._read, body, chat)
        events: Events = asyncio.Queue()

        def deliver(news: Progress | RequestError) -> None:
            with suppress(RuntimeError):  # the server has ended, and its loop with it
                loop.call_soon_threadsafe(events.put_nowait, news)

        ticket = Ticket(asked, prompts, deliver)
        answers = Answers(asked, self._model, sum(len(prompt.ids) for prompt in prompts))
        self._scheduler.submit(ticket)
        try:
            first = await _unless_left(request, _news(events))
            if asked.stream:
                outcome = [CLIENT_LEFT]

                def ended() -> None:
                    ticket.over = True
                    self._counted(request, outcome[0])

                return _EventStream(_stream(answers, events, first, outcome), ended)
            answers.take(first)
            await _unless_left(request, _rest(answers, events))
        except BaseException:
            ticket.over = True
            raise
        self._counted(request, 200)
        return JSONResponse(answers.whole())

    def _read(self, body: bytes, chat: bool) -> tuple[CompletionRequest, list[Prompt]]:
        """The request and its prompts, in the thread for this."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the body is not JSON: {error}") from error
        asked, limits = parse(document, chat=chat, model=self._model), self._scheduler.limits
        if asked.n > limits.running:
            raise RequestError(f"n: expected {limits.running} at most, got {asked.n}", param="n")
        if asked.rows > limits.running + limits.waiting:
            most = (limits.running + limits.waiting) // asked.n
            raise RequestError(f"prompt: expected {most} prompts at most, got {len(asked.prompts)}", param="prompt")
        self._scheduler.check_room(asked.rows)
        return asked, tokenize(asked, self._tokenizer, vocabulary=self._vocabulary, context=limits.context)

    def _counted(self, request: Request, status: int) -> None:
        self._metrics.requests.labels(request.url.path, str(status)).inc()


class _EventStream(StreamingResponse):
    """Server-sent events; tells when it has ended, also where the client left before they began."""

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class HttpThread:
    """A server in a thread of its own, on a socket that is bound."""

    def __init__(self, endpoints: Endpoints, listener: socket.socket) -> None:
        config = uvicorn.Config(
            endpoints.application(),
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="http", daemon=True)

    def start(self) -> None:
        """Begin to listen: from here on connections are taken."""
        self._listener.listen()
        self._thread.start()

    def stop(self) -> None:
        """Send what is under way, then stop."""
        self._server.should_exit = True
        self._thread.join(2 * GRACE_S)


async def _body(request: Request) -> bytes:
    """The body, as far as it may be long."""
    too_long = RequestError(f"the body is longer than {MOST_BODY_BYTES:,} bytes", status=413)
    if int(request.headers.get("content-length", 0)) > MOST_BODY_BYTES:
        raise too_long
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY_BYTES:
                raise too_long
    except ClientDisconnect as error:
        raise ClientLeftError from error
    return bytes(body)


async def _news(events: Events) -> Progress:
    news = await events.get()
    if isinstance(news, RequestError):
        raise news
    return news


async def _rest(answers: Answers, events: Events) -> None:
    while not answers.done:
        answers.take(await _news(events))


async def _stream(answers: Answers, events: Events, news: Progress, outcome: list[int]) -> AsyncIterator[bytes]:
    """The events of a stream from the first news on; `outcome` becomes its status."""
    try:
        for document in answers.opening():
            yield _event(document)
        while True:
            answers.take(news)
            for document in answers.chunks(news):
                yield _event(document)
            if answers.done:
                break
            news = await _news(events)
        for document in answers.closing():
            yield _event(document)
        yield b"data: [DONE]\n\n"
        outcome[:] = [200]
    except RequestError as error:
        outcome[:] = [error.status]
        yield _event(error.document)


async def _unless_left(request: Request, work: Awaitable[Value]) -> Value:
    """The result of some work, unless the client leaves first.

    Raises:
        ClientLeftError: It did.
    """
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeftError
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


async def _request_error(_: Request, error: RequestError) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.status in (429, 503) else None
    return JSONResponse(error.document, error.status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(RequestError(message, status=error.status_code).document, error.status_code, error.headers)


async def _unexpected(_: Request, error: Exception) -> Response:
    failed = RequestError(f"the server failed: {type(error).__name__}", status=500)
    return JSONResponse(failed.document, 500)
