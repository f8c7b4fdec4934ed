"""HTML of all pages: one environment, one base template, one stylesheet."""
