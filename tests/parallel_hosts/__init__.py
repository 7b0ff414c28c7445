"""Runs over several hosts, which are network namespaces of this machine."""
