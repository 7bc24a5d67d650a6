"""Ways to move bytes between ranks; one per file."""
