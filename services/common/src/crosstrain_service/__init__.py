"""Everything of a training service that is not a framework.

This package imports no framework and runs on Python 3.7 and later.
"""

__version__ = "0.1.0"
