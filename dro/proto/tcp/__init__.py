"""LBT-TCP sessions."""
