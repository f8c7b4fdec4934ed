"""What the service sends (wire), what we send (requests), and our tables (tables)."""
