"""Messages without a source, unicast and multicast: what becomes of one that a portal takes in."""
