"""Monitoring of runs: run statistics, metrics, alerts."""
