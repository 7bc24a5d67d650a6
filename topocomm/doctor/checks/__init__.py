"""The checks of `topocomm doctor`, one subject a module."""
