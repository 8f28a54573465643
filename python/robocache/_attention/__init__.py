"""Attention at the shapes and under the masks that robot policies have."""
