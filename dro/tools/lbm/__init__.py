"""The programs that UM users know: `lbmsrc`, `lbmrcv`, `lbmwrcv`, of hot failover, and of latency."""
