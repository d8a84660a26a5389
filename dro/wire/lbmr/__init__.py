"""LBMR: topic resolution packets and their records."""
