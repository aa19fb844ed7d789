"""The effects included in Onefold, by pipeline."""
