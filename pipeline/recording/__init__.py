"""Recordings of the service: its real answers, anonymised, for tests that replay them."""
