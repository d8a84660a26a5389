"""Cores of unicast immediate messages: streams of bytes to messages, connections, duplicates, where contexts are."""
