"""One suite for every engine: small cases, each recorded piece checked against the reference."""
