"""LBMC: message headers and their chain of blocks."""
