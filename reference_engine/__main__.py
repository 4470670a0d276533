"""The command line: `serve`, `bugs` and `client`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, fields

from .bugs import BUGS
from .client import WORKLOADS, run
from .config import EngineConfig
from .policies import FEATURE_POLICY_NAMES, POLICY_NAMES

_HELP = {
    "page_size": "token slots in a page",
    "rows": "request rows, and so how many requests run at a time",
    "context_len": "longest input and output together, in tokens",
    "kv_tokens": "token slots",
    "chunked_prefill_size": "most tokens that are prefilled in one step",
    "mixed_chunk": "prefills and decodes may go in one batch",
    "loop": "whether the next batch is launched before the last one's results are seen",
    "schedule_policy": "in which order the simulated streams run what is queued",
    "seed": "seed of the schedule policy",
    "model_seed": "seed of the model's weights",
    "hybrid": "the second layer is a recurrent state space",
    "window": "how many tokens the last layer sees; 0 for all",
    "host_tokens": "token slots of the tier in host memory; 0 for none",
    "host_write": "when the host tier is filled: when the cache inserts (through) or evicts (back)",
    "storage": "a tier behind the host's, from which arriving requests prefetch",
    "prealloc_rows": "rows for requests whose prompt another server computes; 0 to compute prompts here",
    "draft_tokens": "most tokens that a decode drafts and verifies at once",
    "block_size": "tokens in a block that is refined; 0 draws them one by one",
    "refine_steps": "how often a block is computed",
    "free_groups": "carry out together what the results of one batch give back",
    "track_interval": "hybrid: distance of the positions whose states can be cached, in tokens",
    "cached_states": "hybrid: how many states the prefix cache has room for, beyond what requests leave it",
    "sparse": "requests register with a sparse attention",
    "profile_sizes": "profile that many prefill sizes before serving",
    "profile_chunks": "chunks of the longest profiled prefill",
    "bug": "a historical bug to switch on",
    "compute": "exact: NumPy, equal to the oracle to the bit; kernels: torch and Triton, on the GPU if there is one; "
    "auto: kernels on a GPU that can do what is asked for, else exact",
    "cuda_graph": "kernels: decode in lanes that a GPU replays, with padding lanes",
}
_CHOICES = {
    "loop": ("overlap", "normal"),
    "schedule_policy": (*POLICY_NAMES, *FEATURE_POLICY_NAMES),
    "host_write": ("through", "back"),
    "bug": tuple(BUGS),
    "compute": ("auto", "exact", "kernels"),
}

_DEFAULTS = {"compute": "auto"}
"""Where the command line's differ from those of `EngineConfig`, which are the same on every machine."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.reference_engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve HTTP until SIGINT or SIGTERM")
    _add_address(serve)
    for field in fields(EngineConfig):
        default = _DEFAULTS.get(field.name, field.default)
        flag, help_text = "--" + field.name.replace("_", "-"), _HELP[field.name]
        if isinstance(field.default, bool):
            serve.add_argument(flag, action="store_true", help=help_text)
        else:
            kind = int if isinstance(field.default, int) else str
            shown = help_text if field.default is None else f"{help_text} (default: {default})"
            serve.add_argument(flag, type=kind, default=default, choices=_CHOICES.get(field.name), help=shown)
    listing = commands.add_parser("bugs", help="list the historical bugs that can be switched on")
    listing.add_argument("--format", choices=("text", "json"), default="text")
    client = commands.add_parser("client", help="send a bundled workload and compare the answers with the right ones")
    _add_address(client)
    client.add_argument("--workload", choices=WORKLOADS, default="demo")
    client.add_argument("--seed", type=int, default=0)
    client.add_argument("--count", type=int, default=60)
    client.add_argument("--concurrency", type=int, default=8)
    options = parser.parse_args(arguments)
    if options.command == "bugs":
        try:
            return _bugs(options.format)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush into it
            return 141
    if options.command == "client":
        return run(options.host, options.port, options.workload, options.seed, options.count, options.concurrency)
    try:
        config = EngineConfig(**{field.name: getattr(options, field.name) for field in fields(EngineConfig)})
    except ValueError as error:
        parser.error(str(error))
    if config.bug is not None and (lacks := _features(config.bug, without=config)):
        print(f"the bug {config.bug} needs {' '.join(lacks)}, without which nothing of it shows", file=sys.stderr)
    from .server import serve as serve_http

    return serve_http(config, options.host, options.port)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)


def _features(bug: str, without: EngineConfig | None = None) -> list[str]:
    """The flags that switch on what the bug was seen with, in its scenario; `without` those that are on."""
    from .scenarios import scenario

    seen = scenario(bug, 0, page_size=min(BUGS[bug].page_sizes)).config
    found = []
    for field in fields(EngineConfig):
        value = getattr(seen, field.name)
        is_switch = not field.default or field.name == "host_write"
        if not is_switch or value == field.default or field.name in ("bug", "seed"):
            continue
        if without is None or getattr(without, field.name) == field.default:
            flag = "--" + field.name.replace("_", "-")
            found.append(flag if value is True else f"{flag} {value}")
    return found


def _bugs(form: str) -> int:
    if form == "json":
        print(json.dumps([{**asdict(bug), "effect": bug.effect} for bug in BUGS.values()], indent=2))
        return 0
    for bug in BUGS.values():
        print(f"{bug.name}  ({bug.reference})")
        print(f"    feature      {bug.feature}")
        if needs := _features(bug.name):
            print(f"    needs        {' '.join(needs)}")
        print(f"    finding      {bug.finding}{f' in {bug.pool}' if bug.pool else ''}")
        print(f"    committed    {bug.site}")
        if bug.earlier is not None:
            print(f"    collides     {bug.earlier}")
        print(f"    what happens {bug.summary}")
        print(f"    consequence  {bug.consequence}")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
