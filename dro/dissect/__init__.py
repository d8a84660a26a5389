"""The dissector behind `umdump`: capture files to packets, packets to printed fields. Nothing at run time uses it."""
