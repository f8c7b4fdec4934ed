"""Models of the service's objects (wire), requests and lake tables."""
