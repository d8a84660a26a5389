"""A transport kind in one folder, for tests: it loses datagrams on purpose and repairs them."""
