"""Reporters: pure functions of a report. `terminal` and `json_report` each have a `render`."""
