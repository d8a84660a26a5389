"""`tnwgd simulate`: a network of DROs with the cores of the real ones, on a clock of its own."""
