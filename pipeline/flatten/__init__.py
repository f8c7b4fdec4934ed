"""Documents of JSON to rows of Arrow tables and rejects; pure functions."""
