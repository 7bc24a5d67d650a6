"""The figures of the Tree Attention paper (arXiv 2408.04093) again: simulated, counted or measured, and said which."""
