"""The rules, one module for each concept: every function judges one event against the state, then carries it out."""
