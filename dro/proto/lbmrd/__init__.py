"""Topic resolution by unicast resolver daemons (`lbmrd`), without I/O."""
