"""Packing trees into links of whole units of bandwidth."""
