"""Command-line tools for users of UM: `lbmsrc`, `lbmrcv` and others; `lbmmon`, `tnwgdmon`, `tnwgdcmd`; `umdump`."""
