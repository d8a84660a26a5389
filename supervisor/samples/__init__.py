"""What counter pages and the parent tell of a DRO at one moment, for everything that shows it."""
