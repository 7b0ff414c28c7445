"""The command line. ``crosstrain --help`` lists the commands.

Importing this package is cheap: a command imports what it needs when it is called.
"""

from .main import main

__all__ = ["main"]
