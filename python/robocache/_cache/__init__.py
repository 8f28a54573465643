"""Caches: episodes on disk at their native rates; recipes and `robocache build`, which fill them."""
