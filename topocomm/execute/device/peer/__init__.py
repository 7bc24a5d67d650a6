"""The engine inside a host that is one kernel, writing to the memory of its peers."""
