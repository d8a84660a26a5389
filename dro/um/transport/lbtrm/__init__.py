"""LBT-RM on sockets."""
