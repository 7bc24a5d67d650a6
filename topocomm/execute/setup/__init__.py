"""Set-up of communicators: launchers, bootstrap, handshake, job topology, rank placement."""
