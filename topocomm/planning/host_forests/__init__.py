"""Trees packed into hosts that are alike, and parts of a long value that pass between hosts at the trees' gates."""
