"""Free runs: where they part and why."""
