"""Adapters: one package for each engine, which turns what the engine does into events."""
