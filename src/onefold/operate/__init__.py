"""Operator commands: lag, verdicts, explanations, dead letters, pauses, resets, rebuilds, rights, and health checks."""
