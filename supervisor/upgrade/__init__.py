"""A running DRO moves to another version of the program, in its process and without losing anything."""
