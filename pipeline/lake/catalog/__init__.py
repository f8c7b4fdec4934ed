"""The catalog: the DuckDB file that readers open, made from the documents."""
