"""How a communicator is made: launchers, bootstrap, handshake, job topology, rank placement."""
