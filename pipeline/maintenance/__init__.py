"""Maintenance of a lake without the service: repair, replay, backup and the union of several lakes."""
