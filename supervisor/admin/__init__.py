"""The admin socket: server, client and the records that they exchange."""
