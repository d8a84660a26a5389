"""Endpoint portals: the link to a TRD, its interest, and the proxies in it."""
