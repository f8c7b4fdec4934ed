"""What `make lint` checks beside ruff and codespell, in one pass: `python -m tools.lint` in the project's folder."""
