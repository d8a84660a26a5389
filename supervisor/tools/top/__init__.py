"""`tnwgd-top`: a live view of one DRO, also of one whose parent does not answer or is dead."""
