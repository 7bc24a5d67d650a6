"""Progress bars for `generate`, and the times of the first token and of the others."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import torch

    from attention.jobs.step_profile import StepProfile

REFRESH_S = 0.5


class Meter:
    """A streamer as `generate(..., streamer=meter)` takes it: told of the prompt first, then of every token.

    Shows a bar over the layers while the prompt is read, then one over the tokens. A profile begins with the second
    token: the step before it makes plans.

    Attributes:
        first_token_s: Seconds from entering the context to the first token: prefill.
        other_tokens_s: Seconds from the first token to the last: decode.
    """

    def __init__(self, model: Any, tokens: int, *, show: bool, profile: StepProfile | None = None) -> None:
        self.first_token_s = 0.0
        self.other_tokens_s = 0.0
        self._tokens = tokens
        self._show = show
        self._profile = profile
        self._layers = getattr(model.get_decoder(), "layers", ())
        self._hooks: list[Any] = []
        self._began_s = 0.0
        self._prompt_seen = False

    def __enter__(self) -> Self:
        self._bar = self._new_bar("prefill", len(self._layers), "layer")
        if self._show:
            own_thread = threading.get_ident()  # ranks on threads share the layers

            def advance(*_: Any) -> None:
                if threading.get_ident() == own_thread:
                    self._bar.update()

            self._hooks = [layer.register_forward_hook(advance) for layer in self._layers]
        self._began_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_bar()

    def put(self, tokens: torch.Tensor) -> None:
        """Called by `generate` with the prompt, then with each new token."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        since_began_s = time.perf_counter() - self._began_s
        if self.first_token_s == 0.0:
            self.first_token_s = since_began_s
            self._close_bar()
            self._bar = self._new_bar("decode", self._tokens, "token")
            self._bar.update()
            return
        self.other_tokens_s = since_began_s - self.first_token_s
        self._bar.update()
        if self._profile is not None:
            self._profile.lap()

    def end(self) -> None:
        """Called by `generate` after the last token."""

    def _new_bar(self, title: str, total: int, unit: str) -> Any:
        from tqdm import tqdm

        return tqdm(
            total=total,
            desc=title,
            unit=unit,
            file=sys.stderr,
            disable=not self._show,
            mininterval=REFRESH_S,
        )

    def _close_bar(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._bar.close()
