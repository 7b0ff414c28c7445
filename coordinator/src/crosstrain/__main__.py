"""``python -m crosstrain`` is the command line."""

import sys

from crosstrain.cli import main

sys.exit(main())
