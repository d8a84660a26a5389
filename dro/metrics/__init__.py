"""Tells what a DRO counts and measures: the tables, and the cells of counter pages that are made from them."""
