"""`umdump`: captures as JSON lines, tables and summaries."""
