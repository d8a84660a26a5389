"""The UM client library: contexts at fragment level and message level, asyncio and blocking interfaces."""
