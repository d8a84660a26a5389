"""Command-line tools for users of UM, in rooms by their subject; `docs/tools.md` describes them."""
