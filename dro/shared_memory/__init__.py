"""Memory that processes of one host share: a ring of bytes, and records in it."""
