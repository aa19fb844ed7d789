"""What operators ask and do: lag, verdicts, explanations, dead letters, pauses, resets, rebuilds, rights, and health checks."""
