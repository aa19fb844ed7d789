"""The verification models and generators of the pipelines that Onefold brings. No module here imports what is verified."""
