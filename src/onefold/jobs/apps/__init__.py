"""The effects that Onefold brings along, by pipeline."""
