"""Releases 0.5.16 to 0.5.21: pools, loop and barrier as in the present one, but a prefix cache that publishes by
`cache_unfinished_req` and whose matches are tensors.

What differs from the present release is read here; `table` lists it release by release.
"""
