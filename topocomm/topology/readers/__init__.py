"""One tool's output per file: text in, Topology out; nothing here runs a tool."""
