"""Sessions of datagrams that repair what is lost: what LBT-RM and LBT-RU have in common."""
