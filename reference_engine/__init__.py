"""A small LLM serving engine on which every feature of kvsan, and every bug it finds, can be shown.

In reading order: `request`, `batch`, `scheduler` and `guesses` say what happens; `holdings`, `sessions`, `pools` and
`radix_cache` who holds what; `row_writer`, `forward`, `streams` and `policies` what runs on which stream, and when; `model`, `adapters` and
`arithmetic` what is computed, `shards` and `tensor_ranks` where; `oracle` what is right; `protocol`, `worker` and `server` how clients reach it; `bugs`,
`faulty_*`, `scenario*`, `*_scenarios`, `workload` and `client` how it is made to go wrong.
"""
