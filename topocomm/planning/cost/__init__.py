"""Cost models: what a schedule takes on a machine."""
