"""From a request to a prepared call: binding, planning, agreement, structure of values."""
