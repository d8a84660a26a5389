"""LBT-IPC on shared memory."""
