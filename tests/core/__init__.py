"""Tests of the core: clocks, shadow, ledgers, rules, traces, the check command and the sanitizer."""
