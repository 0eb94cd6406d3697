"""Fly RAPTOR, a quadrotor's policy of others, in the simulator in which it was trained (l2f).

    CPPFLAGS="-DDEBUG -w" pip install --no-deps l2f==2.0.18  # eight quadrotors at a time
    python benchmarks/results/robots/raptor.py > benchmarks/results/robots/raptor.txt

Ten times eight flights of l2f's own quadrotor, a Crazyflie, five seconds each, with three things
taken for the last action. They start in states that are drawn; an eighth is at the target at once.
Golden rows replay with all three; only the closed loop tells them apart.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import yaml

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs" / "examples" / "raptor"))

from raptor import OBSERVED, checkpoint, fly, network  # noqa: E402

from trimtab.benchmarks.artefacts.export import export_policy  # noqa: E402

SEEDS = range(0, 80, 8)
"""l2f draws the start of copy i by seed + i: seeds nearer than eight would repeat starts."""


def main() -> None:
    """Write the bundles, fly them, and print where they end."""
    page = (ROOT / "docs" / "foreign-policies.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml file=raptor.yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    remembers = yaml.safe_load(text)
    terms = {**remembers["observation"]["terms"], "last": {"size": 4}}
    given = {**remembers, "observation": {**remembers["observation"], "terms": terms}}
    ways = {
        "what the runner sent": (remembers, OBSERVED),
        "l2f's entries 18 to 21": (given, (*OBSERVED, 18, 19, 20, 21)),
        "l2f's last four entries": (given, (*OBSERVED, -4, -3, -2, -1)),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "raptor.onnx"
        onnx.save(network(checkpoint()), file)
        for number, (name, (contract, observed)) in enumerate(ways.items()):
            written, bundle = Path(folder) / "contract.yaml", str(Path(folder) / str(number))
            written.write_text(yaml.safe_dump(contract, sort_keys=False), encoding="utf-8")
            export_policy(str(file), bundle, contract=str(written))
            ended = np.concatenate([fly(bundle, observed, seed=seed) for seed in SEEDS])
            sys.stdout.write(
                f"last action: {name}: {len(ended)} flights end {np.median(ended):.3f} m from the "
                f"target (least {ended.min():.3f}, most {ended.max():.3f})\n"
            )


if __name__ == "__main__":
    main()
