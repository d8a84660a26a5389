"""`tnwgdctl`: arguments and output."""
