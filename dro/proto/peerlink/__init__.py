"""The peer link between two DROs: its messages and its dialogue, without sockets."""
