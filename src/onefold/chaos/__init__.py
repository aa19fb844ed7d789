"""Breaks a running stack on purpose: faults as a table, load, failpoints, failures injected at a rate, and the containers."""
