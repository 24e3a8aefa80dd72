"""Looks and counts, never changes anything."""
