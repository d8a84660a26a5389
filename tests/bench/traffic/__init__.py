"""Traffic for benches that is made without the client library: what a UM network puts on the wire, by a C program."""
