"""Holds what an operator runs: each folder is a program or a command; the daemon works without them."""
