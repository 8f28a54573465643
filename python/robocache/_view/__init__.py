"""rc.view and `robocache view`: recordings, caches, aligned results and batches in the Rerun viewer."""
