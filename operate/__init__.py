"""What its operators touch: settings, lag, verdicts, events produced, what a secret is, and whether a service is healthy."""
