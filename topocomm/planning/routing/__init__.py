"""Routes between endpoints, and groups of hosts that look alike."""
