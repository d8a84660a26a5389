"""XML into checked elements: files, includes, the schema of the DRO file, and the list of problems."""
