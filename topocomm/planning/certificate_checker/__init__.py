"""Derives each bound of a certificate again; shares no code with `planning/bounds`."""
