"""The result file of vla-eval, as its ``BenchmarkResult`` has it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from trimtab.benchmarks.artefacts.vla_eval import vla_eval_result
from trimtab.benchmarks.training.evaluate import EpisodeScore, Scores

ALWAYS = {"benchmark", "mode", "harness_version", "created_at", "tasks", "config", "num_errors"}
FACTS = {"policy": "my-bundle", "env": "x/y", "backend": "onnx", "deterministic": True}


def result(success: tuple[bool | None, ...], timed: dict[str, Any] | None = None) -> dict[str, Any]:
    episodes = tuple(
        EpisodeScore(place, 7 + place, 2.0 * place, one, 10 * (place + 1), 0.5)
        for place, one in enumerate(success)
    )
    found = vla_eval_result(Scores(episodes), FACTS, 7, timed or {})
    read: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
    return read


def test_it_has_the_keys_and_means_of_vla_eval() -> None:
    found = result((True, False, True))
    assert found.keys() == ALWAYS | {"seed", "metric_keys", "mean_success", "mean_return"}
    (task,) = found["tasks"]
    assert task.keys() == {"task", "episodes", "num_episodes", "avg_steps"} | {
        "mean_success", "mean_return"
    }  # fmt: skip
    assert (task["task"], task["num_episodes"], task["avg_steps"]) == ("x/y", 3, 20.0)
    for level in (found, task):
        assert level["mean_success"] == pytest.approx(2 / 3) and level["mean_return"] == 2.0
    assert task["episodes"][1] == {
        "episode_id": 1,
        "metrics": {"success": False, "return": 2.0},
        "steps": 20,
        "elapsed_sec": 0.5,
    }
    assert found["metric_keys"] == {"success": "mean", "return": "mean"}
    assert (found["mode"], found["seed"], found["config"]["params"]) == ("sync", 7, {"seed": 7})
    assert datetime.fromisoformat(found["created_at"]).tzinfo is not None


def test_a_task_without_success_has_no_rate_of_it() -> None:
    found = result((None, None), {"delay_ms": 120})
    assert found["mode"] == "simulated_delay"
    assert found["metric_keys"] == {"return": "mean"} and "mean_success" not in found
    assert all(one["metrics"].keys() == {"return"} for one in found["tasks"][0]["episodes"])
