"""Prints the Debian packages that services need or tests use, one a line, from the catalogue."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "coordinator" / "src"))

from crosstrain.launch.catalogue import load_catalogue  # noqa: E402

#: The job store and the metrics are tested against real servers, the report in a real browser, hosts in namespaces.
TESTS = ("chromium", "iproute2", "postgresql", "prometheus")


def main() -> int:
    """Prints the names."""
    catalogue = load_catalogue(ROOT / "services" / "services.toml")
    needing = (*catalogue.services, *catalogue.extras)
    names = {package.name for item in needing for package in item.system}
    print("\n".join(sorted(names | set(TESTS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
