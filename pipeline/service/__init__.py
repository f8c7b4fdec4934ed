"""The service, seen from our side: what its answers mean, how they are fetched, how fast, how often."""
