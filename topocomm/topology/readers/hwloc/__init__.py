"""Output of hwloc."""
