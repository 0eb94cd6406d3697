"""Success of a humanoid's walking policies against delay: how ``delay.csv`` beside this was made.

The policies are somebody else's (``docs/foreign-policies.md``: the contract and the plug-in). Two
kinds of delay, in ticks of 20 ms: every action reaches the motors late (``actions``), or the policy
is asked again only after its late answer has come (``answers``). Ten episodes of ten seconds each::

    pip install --no-deps holosoma-inference==0.1.3
    TRIMTAB_PLUGINS=docs/examples/g1-walk/g1_walk python benchmarks/results/robots/delay.py
"""

from __future__ import annotations

import csv
import re
import tempfile
from importlib import metadata
from pathlib import Path

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.judging import BundleJudge

HERE = Path(__file__).parent
TASK, TICK, TICKS, EPISODES = "g1_walk/Walk-v0", 20.0, range(7), 10


def main() -> None:
    """Judge both networks at every delay, and write a row an episode."""
    page = (HERE.parents[2] / "docs" / "foreign-policies.md").read_text(encoding="utf-8")
    (contract,) = re.findall(r"^```yaml file=contract.yaml\n(.*?)^```$", page, re.M | re.S)
    rows = []
    for network in ("ppo", "fastsac"):
        name = f"{network}_g1_29dof.onnx"
        (file,) = (f for f in metadata.files("holosoma-inference") or [] if f.name == name)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "contract.yaml").write_text(contract, encoding="utf-8")
            bundle = f"{folder}/bundle"
            export_policy(str(file.locate()), bundle, contract=f"{folder}/contract.yaml")
            opened = load_base(bundle)
            for ticks in TICKS:
                for kind in ("actions", "answers"):
                    late = {"delay": ticks} if kind == "actions" and ticks else {}
                    judge = BundleJudge(opened, TASK, late)
                    timing = judge.timing("receding", 1, TICK * ticks, 0.0, 0.0)
                    scores = judge.judge(
                        episodes=EPISODES, seed=0, deterministic=True,
                        timing=timing if kind == "answers" else None,
                    )  # fmt: skip
                    rows += [
                        [network, kind, ticks, e.eval_seed, int(bool(e.success)), e.length,
                         f"{e.return_:.2f}"]
                        for e in scores.episodes
                    ]  # fmt: skip
    with (HERE / "delay.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["network", "late", "ticks", "seed", "success", "length", "return"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
