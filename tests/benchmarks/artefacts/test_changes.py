"""Settings of acting: in training, in what a run is known by, and at export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.artefacts.export import policy_settings
from trimtab.benchmarks.cli.main import run
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError


def test_a_bundle_says_what_was_changed(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fast"
    assert run(["export", f"run={tiny.base}", f"out={out}", "policy.sampling_steps=1"]) == 0
    capsys.readouterr()
    config = json.loads((out / "config.json").read_text())
    assert config["changed"] == {"sampling_steps": {"from": 2, "to": 1}}
    assert "## Results" not in (out / "README.md").read_text()  # those are of the run's own policy
    assert run(["doctor", f"bundle={out}", "format=json"]) == 0
    found = {row["what"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["bundle"]["level"] == "ok" and "ms" in found["latency"]["message"]
    assert not {"torch", "mujoco"} & found.keys()


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
