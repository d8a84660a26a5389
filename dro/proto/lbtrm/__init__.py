"""LBT-RM sessions: receiver with loss detection, source with retransmission."""
