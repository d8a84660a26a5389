"""Sockets and sessions of the transports."""
