"""The dashboard: a page that shows, live and read-only, what is in the tables and how it got there."""
