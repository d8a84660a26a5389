"""Tables that the readers work from: UM options, elements of the DRO XML file, and its DTD."""
