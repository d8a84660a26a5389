"""Codecs: bytes to frozen records and back. No state."""
