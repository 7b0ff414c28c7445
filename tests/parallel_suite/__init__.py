"""Proof that N ranks compute what one does: every engine and strategy, with faults planted between ranks."""
