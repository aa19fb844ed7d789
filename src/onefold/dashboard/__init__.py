"""The dashboard: live, read-only web pages about the tables and the origin of each row."""
