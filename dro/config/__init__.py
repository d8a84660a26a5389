"""Configuration: DRO XML and UM files, their tables, differences, lint and reference."""
