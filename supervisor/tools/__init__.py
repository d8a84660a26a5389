"""What an operator runs: each folder is a program or a command of one, and the daemon works without any of them."""
