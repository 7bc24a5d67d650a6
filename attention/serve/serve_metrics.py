"""Figures of a server, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
"""Upper ends of the histograms' buckets, in seconds."""


class ServeMetrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "topocomm_requests",
            "Requests by endpoint and HTTP status (499: the client left)",
            ["endpoint", "status"],
            registry=registry,
        )
        self.prompt_tokens = Counter("topocomm_prompt_tokens", "Tokens of prompts", registry=registry)
        self.tokens = Counter("topocomm_tokens", "Tokens generated", registry=registry)
        self.queue = Gauge("topocomm_queue_length", "Answers that wait for their turn", registry=registry)
        self.running = Gauge("topocomm_running_answers", "Answers that are being generated", registry=registry)
        self.ranks = Gauge("topocomm_ranks", "Ranks that hold the cache", registry=registry)
        self.first_token_s = Histogram(
            "topocomm_time_to_first_token_seconds",
            "From the arrival of a prompt to its first token",
            buckets=FIRST_TOKEN_S,
            registry=registry,
        )
        self.token_s = Histogram(
            "topocomm_time_per_token_seconds", "Between two tokens of an answer", buckets=TOKEN_S, registry=registry
        )

    def text(self) -> bytes:
        """Return all of them in Prometheus' text format."""
        return generate_latest(self._registry)
