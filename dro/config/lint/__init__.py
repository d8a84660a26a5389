"""Rules on a loaded configuration, alone or together with others of its network."""
