"""vLLM: its backends with `dcp_combine` of ours."""
