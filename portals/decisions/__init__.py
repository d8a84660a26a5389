"""What a portal decides: proxies, forwarding, access control, draining."""
