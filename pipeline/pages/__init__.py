"""The pages about a lake: the dashboard, and without any script the pages to look into tables, one file, SQL."""
