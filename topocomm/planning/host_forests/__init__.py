"""Trees packed into hosts that are alike, and long values that pass between hosts at the trees' gates."""
