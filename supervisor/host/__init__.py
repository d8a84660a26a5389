"""Resources that a daemon needs of its host: signals, user, directories, pid file, limits."""
