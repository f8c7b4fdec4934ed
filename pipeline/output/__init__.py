"""Text that a person reads: only here values become text, and secrets stop here."""
