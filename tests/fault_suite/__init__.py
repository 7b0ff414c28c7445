"""Proof that the verdict works: seeded faults in real engines are named, clean pairs raise no alarm."""
