"""A method of the user's own that learns in stages, in one file, and what the loop makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.benchmarks.cli.screen import print_result
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.policies.bundle.bundle import bundle_hash
from trimtab.types import TrimtabError

METHOD = '''
"""Soft actor-critic in stages, for a test.

Nobody, "No such paper" (arXiv 0000.00000).
"""

from dataclasses import replace
from typing import Any

import torch

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.types import Batch, BatchSpec, Metrics

SEEN = []


class Dreams:
    """A source of the method's own: batches around the last one that was real."""

    def __init__(self, method: "Staged") -> None:
        self.method = method

    def sample(self, batch_size: int) -> Batch:
        last = self.method.last
        noise = 0.01 * torch.randn_like(last.obs)
        return replace(last, obs=last.obs + noise)


class Staged(SAC):
    """SAC whose critics are fitted first by the recorded next actions (SARSA).

    Args:
        setup: needs ``dataset``.
        n_step: decisions in a target.
        sac: settings of SAC.
    """

    needs = Needs({"dataset"})

    def __init__(self, setup: Setup, *, n_step: int = 2, **sac: Any) -> None:
        super().__init__(setup, **sac)
        self.batch_spec = BatchSpec(n_step=n_step, next_action=True, mc_return=True)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        return (
            Phase("fit", budget.offline_steps, "updates", Feed.DATASET, self.fit, eval_every=9),
            Phase("gather", 96, "steps", Feed.EXPERIENCE, None),
            Phase("replay", 12, "updates", Feed.EXPERIENCE, self.fit),
            Phase("dream", 7, "updates", Dreams(self), self.update),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )

    def fit(self, data: Batch) -> Metrics:
        """Regress the critics to the returns and to the values of the recorded next actions."""
        assert data.next_action is not None and data.mc_return is not None
        assert data.mc_return.isfinite().all() and data.action.shape == data.next_action.shape
        SEEN.append("fit")
        self.last = data
        normalizer = self.actor.normalizer
        with torch.no_grad():
            following = normalizer.normalize_action(data.next_action)
            value = self.target(normalizer.obs(data.next_obs), following).amin(0)
            backup = torch.maximum(data.reward + data.discount * value, data.mc_return)
        action = normalizer.normalize_action(data.action)
        loss = self.critic_loss(self.critic(normalizer.obs(data.obs), action), backup)
        self.critic_optimizer.step(loss)
        return {"critic_loss": loss.item()}

    def update(self, data: Batch) -> Metrics:
        SEEN.append("update")
        self.last = data
        return super().update(data)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "last": vars(self.last) if hasattr(self, "last") else None}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state["last"] is not None:
            self.last = Batch(**state["last"])
'''


@pytest.fixture
def words(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "staged.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    return [
        *tiny.task(tmp_path / "runs"), f"dataset={tiny.dataset}", "algorithm=sac",
        "algorithm._target_=staged.Staged", "algorithm.hidden=[16]", "algorithm.batch_size=16",
        "algorithm.warmup_steps=0", "offline_steps=20", "online_steps=64", "num_envs=2",
        "checkpoint_every=10", "eval_every=100",
    ]  # fmt: skip


def test_phases_follow_one_another_each_with_its_own_feed_and_update(words: list[str]) -> None:
    import staged  # type: ignore[import-not-found]

    staged.SEEN.clear()
    result = train(compose_run(words))
    decisions = 64 // 4
    assert ["fit"] * 32 + ["update"] * (7 + decisions) == staged.SEEN
    assert result.summary["env_steps"] >= 96 + 64
    assert result.summary["updates"] == 32 + 7 + decisions
    rows = read_episodes(result.folder / "episodes.parquet").to_pylist()
    # Every ninth update of the first phase, then each hundred units of all, and the end.
    at = sorted({(row["updates"], row["env_steps"]) for row in rows})
    assert [updates for updates, _ in at[:2]] == [9, 18]
    assert at[2][0] == 20 and 72 <= at[2][1] <= 88 and len(at) == 4
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["updates"] == result.summary["updates"]


def test_a_run_that_is_stopped_in_any_phase_goes_on_to_the_same_bits(
    words: list[str], tmp_path: Path, stopped_at: Callable[[int], Any]
) -> None:
    whole = train(compose_run(words))
    stopped = [word for word in words if not word.startswith("out=")]
    stopped.append(f"out={tmp_path / 'stopped'}")
    for moment in (15, 60, 121, 130, 150):
        with stopped_at(moment):
            train(compose_run(stopped))
        torch.manual_seed(moment)
    again = train(compose_run(stopped))
    assert bundle_hash(again.folder / "policy") == bundle_hash(whole.folder / "policy")
    kept = ("updates", "env_steps", "return", "eval_seed")
    first, second = (
        [
            {key: row[key] for key in kept}
            for row in read_episodes(one.folder / "episodes.parquet").to_pylist()
        ]
        for one in (whole, again)
    )
    assert first == second


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"96": "0"}, "its phase replay learns from gathered data"),
        (
            {'needs = Needs({"dataset"})': "needs = Needs()", "budget.offline_steps": "5"},
            "needs dataset=… for its phase fit",
        ),
    ],
)
def test_a_phase_without_its_feed_is_refused_in_one_line(
    change: dict[str, str], told: str, words: list[str], tmp_path: Path
) -> None:
    text = METHOD
    for old, new in change.items():
        text = text.replace(old, new)
    name = "undone" if "96" in change else "unfed"
    (tmp_path / f"{name}.py").write_text(text)
    words = [word.replace("staged.Staged", f"{name}.Staged") for word in words]
    if name == "unfed":
        words = [word for word in words if not word.startswith(("dataset=", "offline_steps="))]
    with pytest.raises(TrimtabError, match=told):
        train(compose_run(words))


UNITS = '''
"""PPO whose rollouts would be learned from in a phase of their own, for a test.

Nobody, "No such paper" (arXiv 0000.00000).
"""

from typing import Any

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.phases import Budget, Feed, Phase


class Units(PPO):
    """PPO in two phases.

    Args:
        setup: as PPO's.
        ppo: settings of PPO.
    """

    def __init__(self, setup: Setup, **ppo: Any) -> None:
        super().__init__(setup, **ppo)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        return (
            Phase("gather", budget.online_steps, "steps", Feed.EXPERIENCE, None),
            Phase("learn", 5, "updates", Feed.EXPERIENCE, self.update),
        )
'''


def test_a_phase_that_updates_nothing_is_refused_in_one_line(
    words: list[str], tmp_path: Path
) -> None:
    fit = '"updates", Feed.EXPERIENCE, self.fit'
    assert fit in METHOD
    (tmp_path / "idle.py").write_text(METHOD.replace(fit, '"updates", Feed.EXPERIENCE, None'))
    words = [word.replace("staged.Staged", "idle.Staged") for word in words]
    with pytest.raises(TrimtabError, match="its phase replay counts updates") as error:
        train(compose_run(words))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_steps_that_no_phase_takes_are_refused_in_one_line(
    words: list[str], tmp_path: Path
) -> None:
    text = METHOD.replace('Phase("gather", 96,', 'Phase("gather", 0,').replace(
        'Phase("replay", 12,', 'Phase("replay", 0,'
    )
    text = text.replace('"online", budget.online_steps,', '"online", 0,')
    (tmp_path / "still.py").write_text(text)
    words = [word.replace("staged.Staged", "still.Staged") for word in words]
    with pytest.raises(TrimtabError, match="does not learn from interaction; set online_steps=0"):
        train(compose_run([*words, "online_steps=10"]))
    assert not (tmp_path / "runs").exists()


def test_a_phase_that_would_learn_from_rollouts_again_is_refused_in_one_line(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "units.py").write_text(UNITS)
    monkeypatch.syspath_prepend(tmp_path)
    words = [*tiny.online(tmp_path / "runs", "ppo"), "algorithm._target_=units.Units"]
    with pytest.raises(TrimtabError, match="its phase learn counts updates, but roll") as error:
        train(compose_run(words))
    assert "let it count steps" in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_a_run_stops_at_the_success_that_is_enough(tiny: Any, tmp_path: Path) -> None:
    words = tiny.cloning(tmp_path)
    usual = train(compose_run(words))
    early = train(compose_run([*words, "stop_at_success=0.0"]))
    assert early.folder != usual.folder
    assert (early.summary["updates"], usual.summary["updates"]) == (50, 120)
    assert train(compose_run([*words, "stop_at_success=0.0"])).already_done
    with pytest.raises(TrimtabError, match="stop_at_success: needs evaluations"):
        train(compose_run([*words, "stop_at_success=0.5", "eval_every=null"]))
    with pytest.raises(TrimtabError, match="must be from 0 to 1"):
        compose_run([*words, "stop_at_success=2"])


def test_a_base_that_never_came_to_its_success_is_refused(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*tiny.cloning(tmp_path / "bases"), "stop_at_success=1.0"]
    weak = train(compose_run(words))
    assert weak.summary["reached"] is False and weak.summary["stop_at_success"] == 1.0
    print_result(weak.place, weak.summary, already_done=False)
    assert "it did not reach the success of 1.0 where it was to stop" in capsys.readouterr().out
    frozen = [*tiny.task(tmp_path / "runs"), "algorithm=frozen"]
    message = r"never reached its stop_at_success=1\.0; train it for more offline_steps"
    with pytest.raises(TrimtabError, match=message) as error:
        train(compose_run([*frozen, f"base={weak.folder}"]))
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()
    enough = train(compose_run([*words[:-1], "stop_at_success=0.0"]))
    assert enough.summary["reached"] is True
    train(compose_run([*frozen, f"base={enough.folder}"]))


def test_a_result_says_where_each_evaluation_was(tiny: Any, tmp_path: Path) -> None:
    result = train(compose_run(tiny.online(tmp_path, "dsrl_sac")))
    places = result.summary["evaluations"]
    rows = read_episodes(result.folder / "episodes.parquet").to_pylist()
    seen = sorted({(row["env_steps"], row["updates"]) for row in rows})
    assert [(place["env_steps"], place["updates"]) for place in places] == seen
    episodes = [place["episodes"] for place in places]
    assert episodes == sorted(episodes) and episodes[-1] >= 320 // 28 - 1
    assert result.summary["trained_parameters"] > 0


def test_updates_from_data_share_lines_also_before_rollouts(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", 20)
    folder = train(compose_run(tiny.online(tmp_path, "uni_o4"))).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    offline = [line["updates"] for line in lines if not line["env_steps"]]
    assert {20, 40, 60} <= {*offline} and len(offline) <= 5  # and one where a stage ends
    online = [line["updates"] for line in lines if line["env_steps"]]
    assert len({*online}) >= 3 and {*online} == {*range(61, max(online) + 1)}  # one a rollout


@pytest.mark.parametrize("offline_steps", [0, 12])
@pytest.mark.parametrize("method", ["qc", "qc_fql", "idql"])
def test_what_offline_updates_have_taught_acts_from_the_first_step_online(
    method: str, offline_steps: int, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the authors' codes of QC and FQL; whoever does not ask for it warms up in any case."""
    words = [
        *tiny.task(tmp_path), f"dataset={tiny.dataset}", f"algorithm={method}", "policy=flow",
        "policy.hidden=[16]", "policy.sampling_steps=2", "algorithm.hidden=[16]",
        "algorithm.batch_size=16", "algorithm.warmup_steps=40", f"offline_steps={offline_steps}",
        "online_steps=80", "offline_share=0.5", "num_envs=1", "eval_every=null",
        *(["algorithm.distill_updates=0"] if method == "qc_fql" else []),
    ]  # fmt: skip
    seen: list[tuple[bool, int]] = []
    gather = loop.Run._gather

    def spied(run: loop.Run, phase: Any) -> int:
        before = run.env_steps
        explore = run.algorithm.explore

        def told(obs: Any, *, warmup: bool) -> Any:
            seen.append((warmup, before))
            return explore(obs, warmup=warmup)

        with monkeypatch.context() as patch:
            patch.setattr(run.algorithm, "explore", told)
            steps = gather(run, phase)
        return steps

    monkeypatch.setattr(loop.Run, "_gather", spied)
    train(compose_run(words))
    acts = method != "idql" and offline_steps > 0
    first = {at: warmup for warmup, at in reversed(seen)}  # later calls of a step continue chunks
    assert min(first) == 0 and max(first) >= 60
    assert all(warmup == (at < 40 and not acts) for at, warmup in first.items())
