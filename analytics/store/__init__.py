"""Reads and writes the objects of a history; writers of histories use it as well."""
