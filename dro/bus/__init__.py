"""Processes of one DRO: messages and their codec, channels, fragment rings, counter pages, listings."""
