"""Topic resolution: schedules, caches, limits, advertisements and queries."""
