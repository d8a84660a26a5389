"""What all programs share: loop, clock, timers, sequence numbers, errors, wildcard matching."""
