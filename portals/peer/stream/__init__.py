"""The TCP connection of a peer link: how it is made, what it carries, and how that is written and read."""
