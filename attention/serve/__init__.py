"""Serving a model over HTTP: OpenAI's protocol, requests in batches, and what rank 0 tells the other ranks."""
