"""What the monitor knows of its DRO without asking anew: status, topology, figures of processes, log events."""
