"""Ping-pong between ranks, in host and in device memory."""
