"""Ring attention: keys and values travel around the ranks."""
