"""The command line `onefold`. Nothing imports it."""
