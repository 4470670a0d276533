"""Releases 0.5.4 to 0.5.12: no plugin system, a prefix cache in Python, no barrier after a forward's reads.

What differs from the present release is read here; `table` lists it release by release. The token slot allocators are
read as those of the present release (`..kv`).
"""
