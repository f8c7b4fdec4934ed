"""Settings: names, types, defaults; from a file, the environment and options."""
