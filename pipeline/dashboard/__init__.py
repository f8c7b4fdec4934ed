"""The dashboard: one self-contained page with the state of a lake."""
