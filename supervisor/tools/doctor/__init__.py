"""`tnwgdctl doctor`: checks host, ports and TRDs."""
