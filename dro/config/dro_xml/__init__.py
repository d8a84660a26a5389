"""The DRO file: its elements as frozen records, loading, access lists, and what this release refuses."""
