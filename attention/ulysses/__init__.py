"""Attention with heads dealt over the ranks: an all-to-all before and one after, a ring over the rest."""
