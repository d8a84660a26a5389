"""Contexts at message level: what applications use."""
