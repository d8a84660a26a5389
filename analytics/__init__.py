"""Answers questions about weeks and years of DROs: histories aggregated by Spark. Knows files alone, no DRO."""
