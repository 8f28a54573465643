"""The loader: batches of windows out of a cache."""
