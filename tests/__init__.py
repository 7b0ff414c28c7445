"""Tests across components; unit tests lie beside their package."""
