"""The page of foreign policies, carried out: a humanoid's network walks, is delayed and edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```yaml file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    trimtab (.*)$", re.MULTILINE)
CHILD = """
import contextlib, glob, io, json, shlex, sys
from trimtab.benchmarks.cli.main import run
answers = []
for line in json.load(sys.stdin):
    line = line.replace("<the run>", "".join(glob.glob("run/**/seed0", recursive=True)))
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = run(shlex.split(line))
    answers.append((code, told.getvalue()))
from pathlib import Path
import numpy as np
from trimtab.envs.registry import make
from trimtab.policies.robot.replay import replay
from trimtab.policies.runtime import NO_LIMITS, load_policy
env = make("g1_walk/Walk-v0")
obs, _ = env.reset(seed=1)
policy = load_policy("edited", log="run.log", deterministic=True, limits=NO_LIMITS)
with contextlib.closing(policy):
    for _ in range(100):
        obs, *_ = env.step(policy.step(obs))
found = replay("run.log")
print(json.dumps([answers, [found.ticks, found.equal]]))
"""


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "foreign-policies.md").read_text(encoding="utf-8")


def test_the_walking_policy_of_the_page_is_judged_delayed_and_edited(
    root: Path, page: str, tmp_path: Path
) -> None:
    """Check 16: no fall up to three ticks, all fall at four; in the listed order, within 1 s."""
    contract = dict(BLOCK.findall(page))["contract.yaml"]
    (tmp_path / "contract.yaml").write_text(contract, encoding="utf-8")
    assert "  order: sorted " in contract
    listed = contract.replace("  order: sorted ", "  order: listed ")
    (tmp_path / "listed.yaml").write_text(listed, encoding="utf-8")
    name = "ppo_g1_29dof.onnx"
    (file,) = (f for f in metadata.files("holosoma-inference") or [] if f.name == name)
    (tmp_path / name).write_bytes(Path(str(file.locate())).read_bytes())
    lines = []
    for line in COMMAND.findall(page[: page.index("## The contract")]):
        line = line.replace("episodes=10", "episodes=1")
        if line.startswith("train"):
            line += " online_steps=30 algorithm.warmup_steps=20 algorithm.hidden=[8] out=run"
            line += " algorithm.batch_size=8 eval_episodes=1"
        lines.append(line + (" format=json" if line.startswith("evaluate") else ""))
    lines += [f"export run={name} contract=listed.yaml out=listed"]
    lines += ["evaluate policy=listed episodes=1 format=json"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(lines), cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "TRIMTAB_PLUGINS": str(root / "docs/examples/g1-walk/g1_walk")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers, (ticks, equal) = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in answers] == [0] * len(lines)
    scores = [
        json.loads(told) for line, (_, told) in zip(lines, answers, strict=True)
        if line.startswith("evaluate")
    ]  # fmt: skip
    plain, three, four, late, edited, wrong = scores
    assert [one["success"] for one in (plain, three, four, late)] == [1, 1, 0, 0]
    assert plain["return"] > 350  # of 500: it follows the command, and does not only stand
    assert edited["success"] == 1 and edited["return"] != plain["return"]
    assert max(episode["length"] for episode in wrong["episodes"]) < 50
    assert (ticks, equal) == (100, True)
