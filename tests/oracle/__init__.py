"""An independent, slow judge of the trace format and generators of traces: the oracle of the fast tracker's tests."""
