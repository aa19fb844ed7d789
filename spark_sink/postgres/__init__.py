"""The connection to Postgres, and its migrations."""
