"""Finds what the admin API and the pages tell: asks the DRO, and reads its counter pages."""
