"""``python -m tests.simulation``: see ``search``."""

from __future__ import annotations

import sys

from tests.simulation.search import main, same_hashes

if __name__ == "__main__":
    same_hashes()
    sys.exit(main())
