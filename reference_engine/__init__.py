"""A small LLM serving engine on which every feature of kvsan, and every bug it finds, can be shown.

In reading order: `request`, `batch`, `scheduler` and `guesses` say what happens; `record`, `holdings`, `sessions`,
`states`, `pools`, `window` and `radix_cache` who holds what; `host_tier`, `storage` and `disaggregation` where else
keys and values come from and go to; `row_writer`, `forward`, `transfers`, `streams` and `policies` what runs on which
stream, and when; `model`, `adapters` and `arithmetic` what is computed, `shards` and `tensor_ranks` where; `oracle`
what is right; `profiling` what is measured before serving; `protocol`, `worker` and `server` how clients reach it;
`bugs`, `faulty_*`, `scenario*`, `*_scenarios`, `workload` and `client` how it is made to go wrong.
"""
