"""Runs that talk to the service: sync, verify and plan, and what they share."""
