"""The sink's connections to Postgres, and the migrations."""
