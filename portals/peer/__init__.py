"""A peer portal: a link to another DRO instead of a TRD."""
