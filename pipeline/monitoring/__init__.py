"""Monitoring of runs: `scanlake watch`, run statistics, metrics, alerts."""
