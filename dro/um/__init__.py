"""The UM client library: transports, contexts at fragment level and message level, asyncio and blocking interfaces."""
