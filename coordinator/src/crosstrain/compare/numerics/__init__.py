"""Reference arithmetic with rounding bounds."""
