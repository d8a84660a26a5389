"""`tnwgd init`: writes a first configuration."""
