"""Command-line tools for users of UM: `lbm`: `lbmsrc`, `lbmrcv` and others; `lbmmon`, `tnwgdmon`, `tnwgdcmd`; `umdump`."""
