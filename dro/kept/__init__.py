"""What a worker leaves to its next incarnation, however it dies: rows of numbers, logs, sockets."""
