"""The command line `onefold`, the embedded local stack that it starts, and nothing that folds or lands events."""
