"""Values that are only moved: over the ways of a flow, in an order that keeps ports busy."""
