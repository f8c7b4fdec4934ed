"""The same job done with the usual tools, as their documentation advises: `make bench-peers`."""
