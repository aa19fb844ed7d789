"""The motor: poll, fold, commit, apply. It knows sessions and codecs by their protocols only."""
