"""Devices and addresses of the host: what the kernel tells of them, and sockets that follow them."""
