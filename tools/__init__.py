"""Programs of development that are no tests: each runs as `python -m tools.NAME`, mostly by a target of make."""
