"""Every way in which a kernel is compiled, and what it then takes."""
