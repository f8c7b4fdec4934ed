"""Runs: the place where crawl, flatten and lake meet.

Nothing is imported here: the writing process needs a few modules of this package, and not the client.
"""
