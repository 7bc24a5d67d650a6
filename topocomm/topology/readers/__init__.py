"""One format each, text in, Topology out.

A reader is a module with `SOURCE`, the name of its tool, and two functions. `matches(text)` says whether the text is
of its format, be it damaged. `read(text, name)` returns the Topology that the text, or a copy of it with other text
around, describes: `name` is what messages call it, and its stem names the topology. It raises a TopologyError that
names file and line, or the JSON path, where the text is cut short, damaged beyond repair or contradicts itself.
"""
