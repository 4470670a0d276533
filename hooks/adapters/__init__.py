"""Adapters: one package for each engine, which turns what the engine does into events.

`probes` is what they share: a table of places in the engine, each with a reader that turns a call into events.
"""
