"""One rank's part of a sharded key-value cache: positions, storage, recovery."""
