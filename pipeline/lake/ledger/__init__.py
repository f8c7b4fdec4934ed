"""The ledger: the SQLite file that records which versions and files are current."""
