"""Commands of `topocomm`, one a file."""
