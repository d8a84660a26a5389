"""Statistics that UM publishes about itself: their bytes, encoded and decoded by the same tables."""
