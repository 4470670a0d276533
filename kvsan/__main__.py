"""`python -m kvsan` is `kvsan`."""

from __future__ import annotations

import sys

from kvsan.cli import main

sys.exit(main())
