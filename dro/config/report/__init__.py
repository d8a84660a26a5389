"""A configuration as text: the effective configuration and the reference."""
