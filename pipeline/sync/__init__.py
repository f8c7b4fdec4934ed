"""Runs that talk to the service: sync, verify and plan; then metrics and alerts."""
