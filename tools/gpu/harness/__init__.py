"""Parts that the programs share: times in turns, worker processes, targets."""
