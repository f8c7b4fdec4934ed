"""The HTTP client, which alone talks to the service: requests, retries, rate limit."""
