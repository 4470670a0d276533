"""Which of the founding bugs the installed release has."""

from __future__ import annotations

import importlib.metadata

RELEASE = importlib.metadata.version("sglang")
HAS_ROW_RACE = RELEASE in ("0.5.4", "0.5.8.post1")
"""sgl-project/sglang#17850"""
HAS_MIXED_CHUNK_LEAK = RELEASE == "0.5.4"
"""sgl-project/sglang#10871"""
