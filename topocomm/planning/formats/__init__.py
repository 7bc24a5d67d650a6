"""Files that plans are written to and read from."""
