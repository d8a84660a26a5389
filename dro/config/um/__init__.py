"""UM options: their table, files in text and XML, the layers of a portal, and typed option sets."""
