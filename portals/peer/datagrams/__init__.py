"""The UDP part of a peer link: its packets, and the repair of those that are lost."""
