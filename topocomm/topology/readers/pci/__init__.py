"""Output of `lspci`."""
