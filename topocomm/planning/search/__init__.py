"""Who tells whom when, on machines that no template fits: gossip, its exact time, bounds, searches."""
