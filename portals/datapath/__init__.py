"""The fragment path of a portal: ingress, egress, descriptors, duplicate window, counters."""
