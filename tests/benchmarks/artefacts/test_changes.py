"""Settings of acting: in training, in what a run is known by, and at export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.artefacts.changes import measure_change, policy_settings
from trimtab.benchmarks.cli.main import run
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.guided_flow import GUIDANCE, GuidedFlowPolicy
from trimtab.types import PolicySpec


def test_an_export_says_what_was_changed_and_what_that_changes(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fast"
    words = [f"run={tiny.base}", f"out={out}", "policy.sampling_steps=1", "episodes=2"]
    assert run(["export", *words]) == 0
    told = capsys.readouterr().out
    for words_of in ("changed: sampling_steps from 2 to 1", "its own policy visits", "own: ", "%"):
        assert words_of in told
    config = json.loads((out / "config.json").read_text())
    assert config["changed"] == {"sampling_steps": {"from": 2, "to": 1}}
    assert "## Results" not in (out / "README.md").read_text()  # those are of the run's own policy
    assert run(["doctor", f"bundle={out}", "format=json"]) == 0
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["bundle"]["level"] == "ok" and "ms" in found["latency"]["message"]
    assert not {"torch", "mujoco"} & found.keys()


@pytest.mark.parametrize(
    ("settings", "zero"), [({"sampling_steps": 2}, True), ({"sampling_steps": 5}, False)]
)
def test_a_change_is_measured_on_the_datas_range(
    tiny: Any, settings: dict[str, Any], zero: bool
) -> None:
    change = measure_change(load_base(str(tiny.base)), settings)
    assert (change.largest == 0) == zero == (change.settings == {})
    assert change.rows == 32 and not change.visited and change.scores is None
    assert 0 <= change.mean <= change.largest <= 1


def test_an_input_is_compared_at_its_defaults(tmp_path: Path) -> None:
    spec = PolicySpec(4, 3, 2, (-1.0, -1.0), (1.0, 2.0)).with_input(GUIDANCE, 1.0)
    policy = GuidedFlowPolicy(spec, hidden=(8,), sampling_steps=2)
    contract = {"env": "gym/X-v0", "control_rate": None, "act_steps": 1}
    save_bundle(policy, tmp_path / "own", contract=contract, onnx=False)
    bundle = load_base(str(tmp_path / "own"))
    assert measure_change(bundle, {"guidance": 3.0}).largest > 0
    assert measure_change(bundle, {"guidance": 1.0}).largest == 0


def test_without_a_task_no_episode_is_compared(tmp_path: Path) -> None:
    spec = PolicySpec(4, 3, 2, (-1.0, -1.0), (1.0, 2.0))
    contract = {"env": "data:my/x-v0", "control_rate": None, "act_steps": 1}
    policy = FlowPolicy(spec, hidden=(8,), sampling_steps=2)
    save_bundle(policy, tmp_path / "own", contract=contract, onnx=False)
    words = [f"run={tmp_path / 'own'}", f"out={tmp_path / 'out'}", "policy.sampling_steps=1"]
    with pytest.raises(TrimtabError, match="without a task to play; leave it out, and") as error:
        run(["export", *words, "episodes=3"])
    assert "episodes=3" in str(error.value) and "env=" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert run(["export", *words]) == 0  # what the message says is enough


def test_words_become_settings() -> None:
    words = ["policy.scheduler=dpmsolver++", "policy.scheduler_settings.solver_order=3"]
    expected = {"scheduler": "dpmsolver++", "scheduler_settings": {"solver_order": 3}}
    assert policy_settings([*words, "policy.guidance=1.5"]) == {**expected, "guidance": 1.5}
    for wrong in ("policy.sampling_steps", "policy.=2", "policy.a=${b}", "policy.a=["):
        with pytest.raises(TrimtabError) as caught:
            policy_settings([wrong])
        assert "\n" not in str(caught.value)


def test_a_run_is_known_by_the_scheduler_and_not_by_its_table_or_its_file(
    tiny: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    content = {"_class_name": "UniPCMultistepScheduler", "solver_order": 3}
    (folder / "scheduler_config.json").write_text(json.dumps(content))
    words = [word for word in tiny.cloning(tmp_path / "runs") if "policy" not in word]
    words = [word for word in words if "steps" not in word] + ["offline_steps=5", "act_steps=4"]
    words += ["policy=diffusion", "policy.hidden=[16]"]
    by_name = [
        "policy.scheduler=UniPCMultistepScheduler",
        "+policy.scheduler_settings={solver_order: 3}",
    ]
    named = train(compose_run([*words, *by_name]))
    identity = json.loads((named.folder / "provenance.json").read_text())["identity"]
    (acts,) = identity["acts"]
    assert acts["settings"]["scheduler_settings"] == {"solver_order": 3}
    assert "table" not in acts["settings"] and "table" not in identity["policy"]["settings"]
    by_file = train(compose_run([*words, f"policy.scheduler={folder}/scheduler_config.json"]))
    assert by_file.already_done and by_file.folder == named.folder
