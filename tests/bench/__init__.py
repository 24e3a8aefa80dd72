"""Measurements; none of them decides a test run."""
