"""Portals: decisions, data path, the shell around both, and one room for each kind of portal."""
