"""Executing plans: communicators, prepared calls, agreement between ranks, transports."""
