"""Command-line tools for users of UM: `lbmsrc`, `lbmrcv`, `lbmwrcv`, `lbmmon`, `tnwgdmon`, `tnwgdcmd`, `umdump`."""
