"""Commands of the admin socket: orders to portals, counters, queries about the configuration."""
