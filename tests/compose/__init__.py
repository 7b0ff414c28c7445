"""The images and the compose stack, for real: built, started, used from outside. ``make e2e-compose`` runs it."""
