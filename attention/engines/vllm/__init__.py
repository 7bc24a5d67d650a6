"""vLLM: what its plug-in entry points load."""
