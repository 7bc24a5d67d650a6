"""Serving engines: what vLLM and SGLang hand to us, by their own plug-in interfaces."""
