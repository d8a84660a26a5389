"""The decisions of one UM context: which sources are wanted, found, joined, left and delivered. Sans I/O."""
