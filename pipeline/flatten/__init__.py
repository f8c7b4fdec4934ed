"""Documents to Arrow tables and rejects. Pure: bytes in, values out."""
