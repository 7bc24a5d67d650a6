"""Builders of long values for machines of several tiers: hosts, the rails between them, and trees inside."""
