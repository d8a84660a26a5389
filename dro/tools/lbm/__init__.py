"""The programs that UM users know: `lbmsrc`, `lbmrcv`, `lbmwrcv`."""
