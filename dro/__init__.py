"""What all programs share: loop, clock, timers, sequence numbers, errors, wildcard matching."""

from dro import compiled_steps

compiled_steps.choose()
