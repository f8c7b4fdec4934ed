"""Client of the file service: requests, responses, retries and rate limit."""
