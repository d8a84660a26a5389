"""LBT-RU: each datagram is sent once to each receiver that has connected, and repaired for those that miss it."""
