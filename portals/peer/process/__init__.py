"""A peer portal as a process: carries out what the cores of `portals.peer` and `portals.decisions` decide."""
