"""Monitoring of runs: their results, metrics, alerts."""
