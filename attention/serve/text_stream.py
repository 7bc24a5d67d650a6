"""Text that comes token by token, up to a stop text."""

from __future__ import annotations

from collections.abc import Callable

REPLACED = "\ufffd"
"""What a decoder puts for bytes that are no character, or not yet."""
CHARACTER_TOKENS = 4
"""Tokens of one character at most: a UTF-8 character has up to 4 bytes."""


class TextStream:
    """The text of one answer.

    What may be the beginning of a stop text, or of a character, is held back until it is known. Tokens are decoded
    together with those of the piece before, as what a token means may depend on its neighbour.

    Args:
        decode: Token ids to text.
        stops: Texts before which the answer ends.

    Attributes:
        stopped: Whether a stop text came; what `add` returned ends before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: tuple[str, ...]) -> None:
        self._decode, self._stops = decode, stops
        self._tokens: list[int] = []
        self._piece = self._read = 0
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the text that is certain after this token."""
        self._tokens.append(token)
        text = self._new_text()
        if text.endswith(REPLACED) and len(self._tokens) - self._read < CHARACTER_TOKENS:
            return ""
        self._piece, self._read = self._read, len(self._tokens)
        return self._release(text)

    def finish(self) -> str:
        """Return what was held back; the answer ends here."""
        text = self._release(self._new_text())
        text, self._held = text + self._held, ""
        return text

    def _new_text(self) -> str:
        known = self._decode(self._tokens[self._piece : self._read])
        return self._decode(self._tokens[self._piece :])[len(known) :]

    def _release(self, text: str) -> str:
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        at = len(self._held) - kept
        text, self._held = self._held[:at], self._held[at:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of the text with which the stop text begins."""
    return next((count for count in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:count])), 0)
