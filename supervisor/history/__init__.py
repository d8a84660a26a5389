"""Writes histories: samples of DROs as Parquet files, from counter pages or from Prometheus."""
