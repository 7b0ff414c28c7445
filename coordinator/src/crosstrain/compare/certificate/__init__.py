"""Local checks of recorded training steps."""
