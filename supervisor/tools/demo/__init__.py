"""`make demo`: a DRO, a source and receivers on this machine, live."""
