"""Pure values and rules: standard library only, no clock, no random numbers, no I/O."""
