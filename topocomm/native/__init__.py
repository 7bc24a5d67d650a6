"""The compiled part, in C: folds of the built-in operators. Optional: without it NumPy folds, to the same bits."""
