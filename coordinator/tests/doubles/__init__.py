"""Test doubles of remote services and helpers to start real ones."""
