"""A small LLM serving engine on which every feature of kvsan, and every bug it finds, can be shown.

In reading order: `request`, `batch` and `scheduler` say what happens; `record`, `holdings`, `states`, `pools` and
`radix_cache` who holds what; `row_writer`, `forward`, `streams` and `policies` what runs on which stream, and when;
`model` and `arithmetic` what is computed; `oracle` what is right; `profiling` what is measured before serving;
`protocol`, `worker` and `server` how clients reach it; `bugs`, `scenarios`, `workload` and `client` how it is made to
go wrong.
"""
