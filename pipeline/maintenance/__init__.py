"""Maintenance of a lake without the service: repair, rebuild and backup."""
