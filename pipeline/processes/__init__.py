"""Processes: signals, the event loop, workers, and other commands as children."""
