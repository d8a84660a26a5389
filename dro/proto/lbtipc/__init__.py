"""Decisions of LBT-IPC sessions, without memory and sockets."""
