"""Whole jobs on a real coordinator and real services."""
