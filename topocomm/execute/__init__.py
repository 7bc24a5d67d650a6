"""Doing it: communicators, prepared calls, agreement between ranks, transports."""
