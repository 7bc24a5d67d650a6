"""What no tool says: host trees, PCI trees, NVLink and xGMI fabrics, path codes."""
