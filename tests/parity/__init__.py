"""The same job in every engine: losses and parameters against the float64 reference."""
