"""Copies of the lake on object storage, for readers on other machines."""
