"""`python -m attention serve`: a language model behind OpenAI's HTTP endpoints, its cache sharded over ranks.

Rank 0 listens, chooses the tokens and tells the other ranks what to do; all ranks take every batch through the model.
"""

from __future__ import annotations

import argparse
import copy
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.jobs.job_launch import (
    OK,
    WORK_FAILED,
    InputError,
    add_device,
    check_device,
    device_of_rank,
    positive,
    say,
    speaks,
)
from attention.jobs.model_folders import KNOWN
from attention.jobs.models import add_weights, find_model, load, model_slices, whole_model
from topocomm import MissingExtraError, RankFailedError

if TYPE_CHECKING:
    from attention.serve.http_server import HttpThread
    from attention.serve.scheduler import Scheduler
    from topocomm import Communicator

ENDS = "the server ends"
RECOVERS = "a rank was lost; the server goes on with the others: send the request again"


def add_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve", help="answer OpenAI's HTTP requests with a sharded cache", description=__doc__
    )
    parser.add_argument(
        "--model", required=True, help="smollm2, or a directory with config.json, safetensors, tokenizer.json"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=_port, default=8000, help="port; 0 takes a free one (default 8000)")
    parser.add_argument("--max-batch", type=positive, default=8, help="answers that run at a time (default 8)")
    parser.add_argument("--max-queue", type=positive, default=64, help="answers that may wait beside them (default 64)")
    parser.add_argument(
        "--max-context", type=positive, help="tokens of a prompt and its answer (default: the model's positions)"
    )
    add_weights(parser)
    add_device(parser)
    parser.set_defaults(job=ServeJob, ranks=None)


class ServeJob:
    """The job; see `attention.jobs.job_launch.Job`."""

    name = "attention serve"

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.path = Path()
        self.model: Any = None
        self.tokenizer: Any = None
        self.context = 0
        self._listener: socket.socket | None = None
        self._end = threading.Event()
        self._wake: Any = lambda: None

    def prepare(self, ranks: int) -> None:
        """Check the model and bind the address before weights are loaded; then signals end the job in order.

        Raises:
            InputError: The model, the address or an option cannot be used, or there is no GPU to run on.
            MissingExtraError: A library of the server is not installed.
            SetupError: The model is not on this machine.
        """
        from attention.huggingface.hf_layers import layer_windows

        try:
            import attention.serve.http_server  # noqa: F401 - whether it can be
        except ModuleNotFoundError as error:
            raise MissingExtraError("python -m attention serve", str(error.name), "serve") from error
        check_device(self.options.device, ranks)
        path = self.path = find_model(self.options.model)
        self.tokenizer, config = load("tokenizer", path), load("configuration", path)
        try:
            layer_windows(config)
        except ValueError as error:
            raise InputError(str(error)) from error
        self.context = self._context(getattr(config, "max_position_embeddings", None))
        if speaks():
            self._listener = self._bind()
        self.model = whole_model(path, self.options.weights, ranks)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked_to_end)

    def work(self, comm: Communicator, cpu_threads: int) -> int:
        """Serve, on rank 0, or follow it, until the job is asked to end; returns the exit status."""
        import torch

        torch.set_num_threads(cpu_threads)
        self._bring(comm)
        if comm.rank:
            return self._over(comm, None)
        scheduler, http = self._front()
        error: BaseException | None = None
        try:
            http.start()
            host, port = self._address()
            say(f"serving {self.served} on http://{host}:{port}/v1 with {_ranks(comm)}")
            return self._over(comm, scheduler)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._fail(
                scheduler, ENDS if error is None else f"the server failed: {error}", 503 if error is None else 500
            )
            http.stop()

    def _bring(self, comm: Communicator) -> None:
        """Have the model on this rank's device: the whole one, or what this rank holds of it."""
        device = device_of_rank(comm, self.options.device, shared=True)
        if self.options.weights == "sharded":
            self.model = model_slices(self.path, comm, device)
        else:
            self.model.to(device)

    def report(self, result: int) -> int:
        """Return the exit status."""
        return result

    @property
    def served(self) -> str:
        """The name of the model, for clients."""
        name: str = self.options.model
        return name if name in KNOWN else Path(name).expanduser().resolve().name

    def _over(self, comm: Communicator, scheduler: Scheduler | None) -> int:
        """Serve over these ranks, and over those that are left when one is lost; returns the exit status.

        Raises:
            SystemExit: Rank 0 is lost, and this process another.
        """
        while True:
            try:
                self._serve(comm, scheduler)
                comm.close()
                return OK
            except RankFailedError as error:
                if scheduler is not None:
                    say(f"{self.name}: {error}")
                    self._fail(scheduler, RECOVERS, 503, waiting=False)
                comm = comm.shrink()
            if comm.parent_ranks[0] != 0:
                if comm.rank == 0:
                    say(f"{self.name}: error: rank 0, which listens, is gone; start the job again")
                sys.exit(WORK_FAILED)
            if self.options.weights == "sharded":
                self._bring(comm)  # a lost rank took its slices along
            if scheduler is not None:
                say(f"{self.name}: goes on with {_ranks(comm)}")

    def _serve(self, comm: Communicator, scheduler: Scheduler | None) -> None:
        from attention.cache.shards import ShardMap
        from attention.huggingface.generation import enable
        from attention.serve.orders import Orders
        from attention.serve.row_batches import BLOCK_TOKENS, RowBatches
        from attention.serve.scheduler import follow

        with enable(self.model, comm, shards=ShardMap(comm.size, block_size=BLOCK_TOKENS)) as sharding:
            batches, orders = RowBatches(self.model, sharding.cache), Orders(comm)
            if scheduler is None:
                follow(orders, batches, self._end)
                return
            scheduler.metrics.ranks.set(comm.size)
            scheduler.refusal = None
            scheduler.run(orders, batches)

    def _fail(self, scheduler: Scheduler, why: str, status: int, *, waiting: bool = True) -> None:
        from attention.serve.protocol import RequestError

        scheduler.refusal = why
        scheduler.fail(RequestError(why, status=status), waiting=waiting)

    def _front(self) -> tuple[Scheduler, HttpThread]:
        """Rank 0's scheduler, and the server in front of it."""
        from attention.serve.http_server import Endpoints, HttpThread
        from attention.serve.scheduler import Limits, Scheduler
        from attention.serve.serve_metrics import ServeMetrics

        settings, options = self.model.generation_config, self.options
        ends = settings.eos_token_id
        end_tokens = frozenset(ends if isinstance(ends, list) else () if ends is None else (ends,))
        limits = Limits(options.max_batch, options.max_queue, self.context)
        penalty = settings.repetition_penalty or 1.0
        scheduler = Scheduler(self.tokenizer, end_tokens, penalty, limits, ServeMetrics(), self._end)
        self._wake = lambda: scheduler.inbox.put(None)
        # A tokenizer of transformers serves one thread.
        reader = copy.deepcopy(self.tokenizer)
        endpoints = Endpoints(scheduler, reader, self.served, self.model.get_input_embeddings().num_embeddings)
        assert self._listener is not None, "rank 0 has bound it"
        return scheduler, HttpThread(endpoints, self._listener)

    def _context(self, positions: int | None) -> int:
        wanted: int | None = self.options.max_context
        if positions is None and wanted is None:
            raise InputError("the model's configuration has no max_position_embeddings; give --max-context TOKENS")
        if wanted is not None and positions is not None and wanted > positions:
            raise InputError(f"--max-context {wanted:,}: the model has {positions:,} positions")
        return wanted or positions or 0

    def _bind(self) -> socket.socket:
        host, port = self.options.host, self.options.port
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with ExitStack() as opened:
                listener = opened.enter_context(socket.socket(family, kind))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                opened.pop_all()
        except OSError as error:
            raise InputError(f"--host {host} --port {port}: cannot listen there: {error}") from error
        return listener

    def _address(self) -> tuple[str, int]:
        assert self._listener is not None, "rank 0 has bound it"
        host, port = self._listener.getsockname()[:2]
        return (f"[{host}]" if ":" in host else host), port

    def _asked_to_end(self, *_: object) -> None:
        self._end.set()
        self._wake()


def _ranks(comm: Communicator) -> str:
    return f"{comm.size} rank{'s' * (comm.size > 1)}"


def _port(text: str) -> int:
    port = int(text) if text.strip().isdecimal() else -1
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return port
