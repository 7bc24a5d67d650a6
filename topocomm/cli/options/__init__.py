"""Options that commands share, and what their values mean."""
