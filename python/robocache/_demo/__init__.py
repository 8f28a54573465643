"""`robocache demo`."""
