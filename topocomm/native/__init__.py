"""The compiled part, in C: folds, shared memory, ports of the cost models. Optional: Python gives the same bits."""
