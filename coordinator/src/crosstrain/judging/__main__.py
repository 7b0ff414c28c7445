"""``python -m crosstrain.judging``: started by the coordinator, not by people."""

import sys

from .worker import main

if __name__ == "__main__":
    sys.exit(main())
