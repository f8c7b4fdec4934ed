"""Mutants: the tests of the product are tested. See `python -m tools.mutants --help`."""
