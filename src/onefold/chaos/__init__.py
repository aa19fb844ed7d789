"""Fault injection for a running stack: a table of faults, load, failpoints, failures at a rate, and access to containers."""
