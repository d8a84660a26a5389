"""Contexts at fragment level, on which the proxies of a DRO are built."""
