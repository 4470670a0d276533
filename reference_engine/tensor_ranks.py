"""Tensor ranks: processes that run one scheduler each on the same requests and exchange attention heads over gloo.

Nothing but the heads is exchanged: that all ranks decide alike is what keeps them together. Every rank records a trace,
and `kvsan check` compares them. Run as a module, this is one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from kvsan.hooks import scope

from kvsan.traces.recorder import Recorder

from . import bugs
from .arithmetic import Array
from .engine import Engine
from .scenarios import scenario
from .shards import Shard

WORLD = 2
TIMEOUT_SECONDS = 120


class RanksParted(RuntimeError):
    """The ranks compute different batches."""


def trace_path(folder: Path, seed: int, rank: int) -> Path:
    """Where a rank records its run of a seed."""
    return folder / f"seed{seed}-rank{rank}.jsonl"


def run_ranks(folder: Path, seeds: range, *, bug: bool, biting: bool = False) -> list[int]:
    """Runs the scenario of the ranks' bug for each seed on all ranks; their exit statuses. Traces and answers (JSON, a
    list of request to tokens for each seed) are in the folder."""
    arguments = ["--folder", str(folder), "--first", str(seeds.start), "--last", str(seeds.stop)]
    arguments += ["--bug"] * bug + ["--biting"] * biting
    command = [sys.executable, "-m", "kvsan.reference_engine.tensor_ranks", *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(WORLD)]
    try:
        return [rank.wait(TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def _join(rank: int, folder: Path) -> Shard:
    """Meets the other ranks in the folder."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder.resolve() / 'rendezvous'}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=TIMEOUT_SECONDS / 2),
    )

    def all_of(local: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(local) for _ in range(WORLD)]
        dist.all_gather(parts, local)
        return parts

    def gather(local: Array) -> Array:
        counts = [int(count) for count in all_of(torch.tensor([local.shape[0]]))]
        if len(set(counts)) > 1:
            raise RanksParted(f"the ranks compute batches of {counts} tokens")
        return np.concatenate([part.numpy() for part in all_of(torch.from_numpy(local.copy()))], axis=1)

    return Shard(rank, WORLD, gather)


def _run(rank: int, folder: Path, seeds: range, *, bug: bool, biting: bool) -> None:
    shard = _join(rank, folder)
    answers = []
    for seed in seeds:
        case = scenario(bugs.RANK_ORDER, seed, biting=biting)
        config = case.config if bug else case.fixed().config
        with scope(level="full") as sanitizer:
            sanitizer.set_rank(group=f"seed {seed}", number=rank)
            recorder = Recorder(str(trace_path(folder, seed, rank)), sanitizer)
            sanitizer.add_plugin(recorder, "recorder")
            try:
                answers.append(replace(case, config=config).drive(Engine(config, shard=shard)))
            finally:
                recorder.close()
    told = [{rid: answer.tokens for rid, answer in each.items()} for each in answers]
    (folder / f"answers-rank{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """One rank."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.reference_engine.tensor_ranks", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder in which the ranks meet")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--last", type=int, default=1, help="behind the last seed")
    parser.add_argument("--bug", action="store_true")
    parser.add_argument("--biting", action="store_true")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.last)
    status = 0
    try:
        _run(options.rank, options.folder, seeds, bug=options.bug, biting=options.biting)
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # gloo's threads still run, and at times turn an ordinary end into an abort; every file is closed


if __name__ == "__main__":
    main()
