"""Runs that are stopped and go on: their settings, and all that must be the same at their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.rows import read_episodes

HOPPING = ("sac", "td3", "simba_v2", "fast_td3", "ppo", "sb3_sac", "sb3_td3", "sb3_ppo")


def run_folder(out: Path) -> Path:
    (found,) = out.rglob("provenance.json")
    return found.parent


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that must be the same: weights, last state, rows and log, without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (last,) = (folder / "checkpoint").glob("step-*")
    kept = sorted((folder / "checkpoint").glob("rows/*"))
    rows = read_episodes(folder / "episodes.parquet").to_pylist()
    summary = json.loads((folder / "result.json").read_text())
    for place in summary["evaluations"]:
        del place["seconds"]
    return {
        "folder": folder.parts[-3:],
        "weights": (folder / "policy" / "model.safetensors").read_bytes(),
        "golden": (folder / "policy" / "golden.safetensors").read_bytes(),
        "state": (last.name, (last / "arrays.safetensors").read_bytes()),
        "segments": [(path.name, path.read_bytes()) for path in kept],
        "rows": [{k: v for k, v in row.items() if k != "seconds"} for row in rows],
        "log": [{k: v for k, v in json.loads(x).items() if k != "seconds"} for x in lines],
        "summary": {k: v for k, v in summary.items() if k != "seconds"},
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    }


def words_of(tiny: Any, method: str, out: Path) -> list[str]:
    """Return the settings of a run; behind the method's name there may be more of them."""
    method, *more = method.split()
    words: list[str] = tiny.cloning(out) if method == "bc" else tiny.online(out, method)
    if method in HOPPING:  # a simulator with contacts, whose episodes end by themselves
        words = [*words, "env=gym/Hopper-v5", "env_options.horizon=200"]
    words += more
    return list({word.partition("=")[0]: word for word in words}.values())  # each given once
