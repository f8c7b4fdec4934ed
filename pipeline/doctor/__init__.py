"""Checks of settings, lake and connection for `scanlake doctor`."""
