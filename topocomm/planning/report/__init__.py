"""Words and pictures of a plan."""
