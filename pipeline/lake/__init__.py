"""The lake: a ledger that is the truth, parts that hold the rows, a catalog that analysts open."""
