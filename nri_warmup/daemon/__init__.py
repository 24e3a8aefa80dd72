"""Joins the rooms. Read pipeline.py first."""
