"""Topic resolution over TCP, the side of a context (`resolver_service`), without I/O."""
