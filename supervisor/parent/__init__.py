"""The parent process: forks, watches and restarts workers."""
