"""Windows of update time, and the concurrent flow through them."""
