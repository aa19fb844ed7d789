"""The side effects of the pipeline `sheets`: snapshots and uploads, and the reading of sheets."""
