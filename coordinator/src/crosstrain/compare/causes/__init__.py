"""Causes of failed checks."""
