"""Maintenance of a lake without the service: repair and rebuild."""
