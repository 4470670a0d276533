"""Releases 0.5.4 to 0.5.15: a prefix cache in Python, and a barrier after a forward's reads late and not everywhere.

What differs from the present release is read here; `table` lists it release by release. The token slot allocators are
read as those of the present release (`..kv`).
"""
