"""``python -m crosstrain_service`` serves one engine package."""

import sys

from .server import main

sys.exit(main())
