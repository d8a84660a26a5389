"""From the arguments of `tnwgd` to the running parent."""
