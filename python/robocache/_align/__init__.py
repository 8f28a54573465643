"""Streams at their own rates, onto one timeline."""
