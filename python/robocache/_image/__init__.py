"""Camera frames as tensors for a policy."""
