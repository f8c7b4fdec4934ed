"""What `make lint` checks beside ruff and codespell, in one pass: `python -m tests.lint` in the project's folder."""
