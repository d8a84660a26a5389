"""Topic resolution over TCP: what the server (SRS) decides, without sockets."""
