"""What the machine is: devices, links, and how they become known."""
