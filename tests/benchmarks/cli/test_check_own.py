"""``trimtab check`` of a method, a policy and data of one's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.contracts.resuming import small_run
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.errors import TrimtabError

METHOD = """
from types import SimpleNamespace
import torch
from trimtab.algorithms.offline.bc import BehaviorCloning

CALLS = SimpleNamespace(made=0)


class {name}(BehaviorCloning):
    faithful = False
    {body}
"""
BODIES = {
    "right": "",
    "reads": """
    def update(self, data):
        return {k: float(v) for k, v in super().update(data).items()}
    """,
    "renames": """
    def update(self, data):
        return {f"{k}{self.updates}": v for k, v in super().update(data).items()}
    """,
    "graph": """
    def update(self, data):
        return {**super().update(data), "loss": torch.ones((), requires_grad=True)}
    """,
    "nan": """
    def update(self, data):
        return {**super().update(data), "ratio": torch.tensor(float("nan"))}
    """,
    "raises": """
    def update(self, data):
        return {}["nothing"]
    """,
    "module": """
    def update(self, data):
        CALLS.made += 1
        self.optimizer.learning_rates[0] = 1e-3 / CALLS.made
        with torch.no_grad():
            for weight in self.policy.parameters():
                weight.mul_(1 - 1e-3 / CALLS.made)
        return super().update(data)
    """,
}


def written(folder: Path, name: str) -> list[str]:
    """Write a method of one file; return the words that name it, with what makes it small."""
    stem = f"checked_{name}"
    (folder / f"{stem}.py").write_text(
        METHOD.replace("{name}", "Own").replace("{body}", BODIES[name])
    )
    (folder / f"{stem}.yaml").write_text(
        f"# @package _global_\nalgorithm:\n  _target_: {stem}.Own\n  batch_size: 16\n"
        "offline_steps: 100\n"
    )
    return [f"algorithm={folder / stem}.yaml"]


def checks(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = command(["check", *words, "format=json"])
    told = json.loads(capfd.readouterr().out)
    assert told["faults"] == sum(not one["passed"] for one in told["checks"])
    return code, {one["check"]: one for one in told["checks"]}


@pytest.mark.parametrize(
    ("name", "check", "said"),
    [
        ("reads", "device", "reads a number back"),
        ("renames", "metrics", "return the same names"),
        ("graph", "metrics", r"loss has a gradient; return loss.detach\(\)"),
        ("nan", "metrics", "metric ratio is nan"),
        ("raises", "metrics", "of your own failed with KeyError"),
    ],
)
def test_a_fault_of_a_method_is_one_line(
    name: str, check: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*written(tmp_path, name), "skip=resume,export"]
    code, found = checks(words, capfd)
    assert code == 1 and not found[check]["passed"] and "resume" not in found
    assert re.search(said, found[check]["text"]), found[check]
    assert "\n" not in found[check]["text"]


def test_a_right_method_has_a_line_for_each_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(["check", *written(tmp_path, "right"), "skip=resume"]) == 0
    lines = capfd.readouterr().out.splitlines()
    *names, end = [line.split(": ")[1] for line in lines]
    assert names == [
        "metrics", "seeds", "learning", "state", "exploring", "device", "captured", "export",
    ]  # fmt: skip
    assert end == "no fault found"


def test_a_file_without_a_budget_is_checked_with_a_small_one(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = (root / "docs" / "suites.md").read_text()
    for name in ("smoothed.py", "smoothed_bc.yaml"):
        text = re.search(rf"^```\w+ file={name}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert text is not None
        (tmp_path / name).write_text(text[1])
    words = [f"algorithm={tmp_path / 'smoothed_bc.yaml'}"]
    config = compose_run(small_run(words, str(tmp_path / "out")))
    assert (config["offline_steps"], config["online_steps"]) == (40, 0)
    assert config["algorithm"]["decay_updates"] == 40
    assert command(["check", *words, "skip=export,device,seeds,exploring,resume"]) == 0
    assert "no fault found" in capfd.readouterr().out


def test_what_a_module_holds_is_found_in_another_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = written(tmp_path, "module")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, found = checks([*words, "skip=export,device,seeds,learning"], capfd)
    assert code == 1 and "a global variable" in found["resume"]["text"]


POLICY = """
import torch
from trimtab.policies.kinds.deterministic import DeterministicPolicy


class {name}Policy(DeterministicPolicy):
    {body}
"""
POLICIES = {
    "sound": ("", None, ""),
    "loud": (
        "def forward(self, obs, noise):\n        return 3 * super().forward(obs, noise)",
        "limits", "outside of the limits",
    ),
    "chance": (
        "def forward(self, obs, noise):\n        drawn = 1e-3 * torch.randn(())\n"
        "        return super().forward(obs + drawn, noise)",
        "function", "all chance comes from the noise",
    ),
    "counts": (
        "def forward(self, obs, noise):\n        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        return super().forward(obs, noise) / (2 if self.calls > 2 else 1)",
        "state", "acts otherwise once it is loaded",
    ),
}  # fmt: skip


def test_policies_of_a_plug_in(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    room = tmp_path / "lab_of_checks" / "policies" / "kinds"
    room.mkdir(parents=True)
    for name, (body, *_) in POLICIES.items():
        text = POLICY.replace("{name}", name.title()).replace("{body}", body or "pass")
        (room / f"{name}_of_checks.py").write_text(text)
        target = f"lab_of_checks.policies.kinds.{name}_of_checks.{name.title()}Policy"
        (tmp_path / f"{name}.yaml").write_text(f"_target_: {target}\nhidden: [8]\n")
    lines = ["import json, sys", "from trimtab.benchmarks.cli.main import run"]
    lines += ["print([run(['--with', 'lab_of_checks', 'check', f'policy=./{name}.yaml',"]
    lines += [f"'skip=resume,export', 'format=json']) for name in {[*POLICIES]}])"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *told, codes = done.stdout.replace("}\n{", "}\n\x00{").replace("}\n[", "}\n\x00[").split("\x00")
    assert json.loads(codes) == [0, 1, 1, 1]
    for text, (_, check, said) in zip(told, POLICIES.values(), strict=True):
        wrong = {
            one["check"]: one["text"] for one in json.loads(text)["checks"] if not one["passed"]
        }
        assert (check in wrong and said in wrong[check]) if check else not wrong


def test_a_policy_that_no_bundle_could_name_is_said_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside_of_checks.py").write_text(
        POLICY.replace("{name}", "Own").replace("{body}", "pass")
    )
    file = tmp_path / "beside.yaml"
    file.write_text("_target_: beside_of_checks.OwnPolicy\nhidden: [8]\n")
    code, found = checks([f"policy={file}"], capfd)
    assert (
        code == 1
        and [*found] == ["kind"]
        and "policies/kinds/ of a plug-in" in found["kind"]["text"]
    )


RECIPE = """
id: mine/checked-v0
env: gymnasium:Pendulum-v1
episodes: 20
seed: 0
only_successful: false
controller:
  _target_: trimtab.datasets.recipes.uniform.UniformRandom
  low: [-2.0]
  high: [2.0]
"""


def test_a_recipe_is_recorded_twice(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checked_recipe.yaml").write_text(RECIPE)
    words = [f"dataset={tmp_path / 'checked_recipe.yaml'}"]
    code, found = checks([*words, "skip=resume"], capfd)
    assert code == 0 and "content is the same" in found["made"]["text"]
    assert found["contents"]["text"].startswith("8 episodes, 1600 steps")
    code, found = checks([*words, "skip=resume,made", "env=gym/Hopper-v5"], capfd)
    assert code == 1 and "gym/Hopper-v5" in found["contents"]["text"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give env=…, algorithm=…, policy=… or dataset=…"),
        (["algorithm=sacc"], "did you mean sac"),
        (["algorithm=bc", "skip=devise"], "did you mean device"),
        (["algorithm=./absent.yaml"], "cannot be read"),
        (["algorithm=bc", "algorithm.hiden=[8]"], "hiden"),
        (["env=gymnasium:Pendulum-v1", "skip=device"], "skip= is of a method"),
        (["policy=flo"], "did you mean flow"),
        (["dataset=nothing_like_it"], "nothing_like_it"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(TrimtabError, match=said) as told:
        command(["check", *words])
    assert "\n" not in str(told.value) and told.value.exit_code == 2
