"""What robots log: a reader for each format, one clock for all of them, and the sync report."""
