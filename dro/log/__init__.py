"""The log: lines, public ids, files that roll, limits on lines that remote hosts can cause."""
