"""Messages and services of version 1 of the API, generated from ``protos/crosstrain/v1``."""
