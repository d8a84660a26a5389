"""LBT-TCP on sockets."""
