"""The command line: what a person types, and what a command prints and returns."""
