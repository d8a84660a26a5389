"""Keeps what the monitor knows of its DRO without asking anew: status, topology, the last hour, log events."""
