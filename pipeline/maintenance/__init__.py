"""Maintenance of a lake without the service: repair, replay and backup."""
