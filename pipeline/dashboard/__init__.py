"""The dashboard: one self-contained page about the lake, made from one snapshot of its published catalog."""
