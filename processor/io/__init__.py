"""One file per outside system, each the only importer of its library."""
