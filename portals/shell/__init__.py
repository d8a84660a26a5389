"""The part of a portal around its core and its data path, common to all kinds of portal."""
