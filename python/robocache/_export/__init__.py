"""The episodes of a cache as files that other libraries read."""
