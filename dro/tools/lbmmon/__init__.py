"""The programs that show statistics which UM applications and DROs publish: `lbmmon`, `tnwgdmon`, `tnwgdcmd`."""
