"""Starts Crosstrain on one machine: interpreters, environments and the catalogue of services.

``catalogue``, ``interpreters``, ``system``, ``building``, ``environments`` and ``bootstrap`` use
the standard library only, since they run before any environment exists; this package and
``crosstrain`` itself must therefore import nothing else.
"""
