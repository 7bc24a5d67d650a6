"""Plug-ins of other inference engines: their attention and merges on plans of topocomm."""
