"""The topology of this host, from its drivers, tools and sysfs."""
