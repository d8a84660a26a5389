"""Sans-IO protocol cores: bytes and time in, bytes and events out."""
