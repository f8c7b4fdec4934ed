"""The lake: a folder with all that the service has, and the operations on all of it."""
