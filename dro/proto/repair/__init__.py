"""Sessions that repair what is lost, as those of LBT-RM and LBT-RU do: loss detection, retransmission, pace."""
