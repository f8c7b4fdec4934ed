"""Pages to look into the lake's rows, which `dashboard --serve` adds: tables, one file, SQL. Without any script."""
