"""The processing cycle: poll, compute, commit, apply. The package depends on the protocols of sessions and codecs only."""
