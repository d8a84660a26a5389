"""Transport sessions, with their sockets and the tables of runs that carry fragments from one session to another."""
