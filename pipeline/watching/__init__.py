"""Running unattended: when to run, what became of it, and who is told."""
