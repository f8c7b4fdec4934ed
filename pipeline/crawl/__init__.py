"""What is new, changed or deleted in the service: windows, list pages, details."""
