"""PDF reports and share links, which the service makes of files in the lake."""
