"""Pure values and rules: the standard library only, no clock, no dice, no I/O."""
