"""What the admin API and the pages tell: asked of the DRO, and read from its counter pages."""
