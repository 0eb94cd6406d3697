"""Make the learned tiers anew and compare them with what is committed; ``--write`` commits.

python tiers.py [folder of runs]          # exit code 1 where a dataset has other content
python tiers.py [folder of runs] --write  # writes benchmarks/results/tiers/tiers.json

What is made before is not made again. A tier is decided by its recipe, the weights of the policies
in ``datasets/behaviour`` and the pinned packages; on another kind of processor than the table's a
last bit can differ, and then the episodes after it: there a tier is as committed if it agrees
within the tolerance of :mod:`trimtab.benchmarks.training.data.published`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trimtab.benchmarks.board.stats import two_level_bootstrap
from trimtab.benchmarks.training.data.behaviour import BehaviourPolicy, behaviour_folder
from trimtab.benchmarks.training.data.published import compare
from trimtab.benchmarks.training.data.recipes import make_dataset
from trimtab.benchmarks.training.data.recording import Stage, dataset_of
from trimtab.benchmarks.training.evaluate import Evaluator, torch_act
from trimtab.benchmarks.training.provenance import versions
from trimtab.benchmarks.training.settings.groups import group_options, load_group
from trimtab.datasets.episodes import Dataset
from trimtab.envs.registry import get_spec, list_tasks
from trimtab.files import atomic_write_json, atomic_write_text
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.processor import processor_kind

TABLE = Path(__file__).resolve().with_name("tiers.json")
PAGE = TABLE.with_suffix(".md")
BEGINNING = 2
"""Episodes of each tier whose hash stands in the table too: enough for a test to make anew."""
JUDGED = 100
"""Episodes by which an expert is judged, with seeds from 0 on and no noise."""


def tiers() -> list[str]:
    """Return the names of the recipes that are learned tiers, and of the random ones beside."""
    files = {name: load_group("dataset", name) for name in group_options("dataset")}
    learned = {
        file["env"]
        for file in files.values()
        if BehaviourPolicy.__name__ in str(file.get("controller"))
    }
    return [
        name for name, file in files.items() if file.get("env") in learned and "run" not in file
    ]


def interval(values: Any) -> dict[str, float]:
    """Return the mean with its 95 percent interval over episodes."""
    found = two_level_bootstrap([np.asarray(values, float)])
    return {
        key: round(value, 2)
        for key, value in (("mean", found.value), ("low", found.low), ("high", found.high))
    }


def first_episodes(name: str) -> Dataset:
    """Return the first episodes of a tier, made anew."""
    recipe = load_group("dataset", name)
    with contextlib.closing(Stage(recipe)) as stage:
        return dataset_of(recipe, [stage.play(n) for n in range(BEGINNING)])


def measured(name: str, runs: Path) -> dict[str, Any]:
    """Make a tier below ``runs`` and return its row of the table."""
    recipe = load_group("dataset", name)
    dataset = make_dataset(recipe, runs)
    stands = compare(name, dataset)
    if not stands.equal:
        sys.stdout.write(f"{name}: {stands.text}\n")
    row = {
        "id": dataset.id,
        "agrees": stands.agrees,
        "content_hash": dataset.content_hash,
        "episodes": len(dataset),
        "steps": dataset.num_steps,
        "return": interval([episode.total_reward for episode in dataset.episodes]),
    }
    return row if "of" in recipe else {**row, "beginning": first_episodes(name).content_hash}


def judged(recipe: Mapping[str, Any]) -> dict[str, float]:
    """Return what the policy of an expert's recipe scores without noise."""
    (name,) = recipe["controller"]["policies"]
    policy = load_bundle(behaviour_folder(name)).policy
    evaluator = Evaluator(recipe["env"], episodes=JUDGED, seed=0, act_steps=1, options={})
    try:
        scores = evaluator.judge(torch_act(policy), policy.inputs, deterministic=True)
    finally:
        evaluator.close()
    return interval([episode.return_ for episode in scores.episodes])


def shown(value: Mapping[str, float]) -> str:
    """Return a mean with its interval."""
    return f"{value['mean']:,.0f} [{value['low']:,.0f}, {value['high']:,.0f}]"


def page(document: Mapping[str, Any]) -> str:
    """Return the table of the tiers and that of the references, as Markdown."""
    lines = [
        "| dataset | episodes | steps | return | content hash |",
        "| :-- | --: | --: | --: | :-- |",
    ]
    lines += [
        f"| `{row['id']}` | {row['episodes']:,} | {row['steps']:,} | {shown(row['return'])} "
        f"| `{row['content_hash'][:16]}` |"
        for row in document["tiers"].values()
    ]
    lines += [
        "",
        "| task | random, `trimtab-v0` | expert, `trimtab-v0` | random and expert, `d4rl-v2` |",
        "| :-- | --: | --: | --: |",
    ]
    for env, score in document["references"].items():
        low, high = list_tasks()[env].score_references["d4rl-v2"]
        lines.append(
            f"| `{env}` | {shown(score['random'])} | {shown(score['expert'])} "
            f"| {low:,.0f} and {high:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Make, compare, tell; write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", default="runs", type=Path)
    parser.add_argument("--write", action="store_true")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    committed = json.loads(TABLE.read_text()) if TABLE.is_file() else {"tiers": {}}
    rows, differing = {}, 0
    for name in tiers():
        rows[name] = measured(name, settings.runs)
        before = committed["tiers"].get(name, {}).get("content_hash")
        agrees = rows[name].pop("agrees") and committed.get("processor") != processor_kind()
        same = before == rows[name]["content_hash"] or agrees
        differing += not same
        sys.stdout.write(f"{name}: {'as committed' if same else 'NOT as committed'}\n")
        sys.stdout.flush()
    if settings.write:
        references = {}
        for name, row in rows.items():
            recipe = load_group("dataset", name)
            score = references.setdefault(recipe["env"], {})
            if name.endswith("_random"):
                score["random"] = row["return"]
            elif name.endswith("_expert") and "controller" in recipe:
                score["expert"] = judged(recipe)
        fingerprints = {env: get_spec(env).fingerprint for env in references}
        document = {
            "command": "python benchmarks/results/tiers/tiers.py --write",
            "packages": versions(),
            "processor": processor_kind(),
            "fingerprints": fingerprints,
            "references": references,
            "tiers": rows,
        }
        atomic_write_json(TABLE, document)
        atomic_write_text(PAGE, page(document))
        return 0
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
