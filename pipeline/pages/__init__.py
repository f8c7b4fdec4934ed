"""The pages about a lake: the dashboard, and those to look into tables, one file, SQL."""
