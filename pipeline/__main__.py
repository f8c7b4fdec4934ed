"""`python -m pipeline` does what `scanlake` does."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
