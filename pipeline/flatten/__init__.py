"""Conversion of documents to Arrow tables and rejects; pure functions."""
