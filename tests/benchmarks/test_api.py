"""The package's functions are the command line's, with the same bits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trimtab
from trimtab.benchmarks.api import TrainedRun
from trimtab.benchmarks.cli.main import run as command
from trimtab.errors import TrimtabError
from trimtab.policies import runtime


def outcome(folder: Path) -> tuple[Any, ...]:
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (
        folder.parts[-3:],
        [{k: v for k, v in line.items() if k != "seconds"} for line in log],
        (folder / "policy" / "model.safetensors").read_bytes(),
    )


def settings_of(out: Path) -> dict[str, Any]:
    return {
        "env": "gym/Hopper-v5",
        "algorithm": "sac",
        "algorithm.hidden": [8, 8],
        "algorithm.warmup_steps": 40,
        "env_options": {"horizon": 50},
        "online_steps": 120,
        "eval_every": 40,
        "eval_episodes": 2,
        "checkpoint_every": 50,
        "buffer_size": np.int64(500),
        "discount": 0.98,
        "eval_deterministic": None,
        "keep_policies": True,
        "out": out,
    }


class Heard(trimtab.Callback):
    """Keeps what it is told; asks the run to stop after an evaluation at a number of steps."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.scores: dict[int, Mapping[str, float | None]] = {}
        self.saved: list[int] = []
        self.stop_at = stop_at

    def on_step(self, now: trimtab.RunProgress) -> None:
        self.steps.append((now.position, now.env_steps, now.updates))

    def on_evaluation(self, now: trimtab.RunProgress, scores: Mapping[str, float | None]) -> None:
        self.scores[now.env_steps] = scores
        if now.env_steps == self.stop_at:
            now.stop()

    def on_checkpoint(self, now: trimtab.RunProgress) -> None:
        assert (now.folder / "checkpoint").is_dir() and now.end == 120
        self.saved.append(now.position)


@pytest.fixture(scope="module")
def from_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("words")
    words = ["env=gym/Hopper-v5", "algorithm=sac", "algorithm.hidden=[8,8]", "online_steps=120"]
    words += ["algorithm.warmup_steps=40", "env_options.horizon=50", "eval_every=40"]
    words += ["eval_episodes=2", "checkpoint_every=50", "buffer_size=500", "discount=0.98"]
    assert command(["train", *words, "keep_policies=true", f"out={out}"]) == 0
    (found,) = out.rglob("result.json")
    return found.parent


def test_a_run_is_that_of_the_command_line(from_words: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads())
    heard = Heard()
    run = trimtab.train(settings_of(tmp_path), callbacks=[heard])
    assert outcome(run.folder) == outcome(from_words) and not run.already_done
    after = (torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads())
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert [step for step, _, _ in heard.steps] == list(range(1, 121))
    assert heard.steps[-1] == (120, 120, 81) and heard.saved == [50, 100, 120]
    assert list(heard.scores) == [40, 80, 120]
    assert heard.scores[120] == {"return": run.mean_return, "success": None}
    assert run.success_rate is None and run.episodes().num_rows == 6
    rows = [x["return"] for x in run.episodes().to_pylist() if x["env_steps"] == 80]
    assert heard.scores[80]["return"] == pytest.approx(np.mean(rows))
    assert trimtab.train(settings_of(tmp_path)).already_done


@pytest.mark.parametrize("at", [40, 80])
def test_a_run_that_a_callback_ends_has_a_marked_result(
    from_words: Path, at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    early = trimtab.train(settings_of(tmp_path), callbacks=[Heard(stop_at=at)])
    assert early.stopped_early and early.summary["stopped_early"] == {"at": at, "of": 120}
    rows = early.episodes().to_pylist()
    marked = {row["env_steps"] for row in rows if dict(row["metrics"]).get("stopped_early")}
    assert marked == {at} and early.mean_return == pytest.approx(
        np.mean([row["return"] for row in rows if row["env_steps"] == at])
    )
    assert trimtab.evaluate(early, episodes=2, seed=10**6).mean_return == early.mean_return
    config = json.loads((early.folder / "policy" / "config.json").read_text())
    assert config["training"]["stopped_early"] == {"at": at, "of": 120}
    (note,) = (n for n in trimtab.leaderboard(tmp_path).notes if "ended sac" in n)
    assert "seed 0: it counts with its last evaluation" in note
    assert command(["runs", str(tmp_path), "format=json"]) == 0
    assert f"at {at} of 120" in json.loads(capsys.readouterr().out)[0]["note"]
    heard = Heard()  # the same call finds it done
    assert trimtab.train(settings_of(tmp_path), callbacks=[heard]).already_done and not heard.steps
    whole = trimtab.train(settings_of(tmp_path))  # and one without callbacks goes on
    assert not whole.stopped_early and outcome(whole.folder) == outcome(from_words)
    assert [row["env_steps"] for row in whole.episodes().to_pylist()] == [40, 40, 80, 80, 120, 120]
    assert not any("ended sac" in n for n in trimtab.leaderboard(tmp_path).notes)


def test_a_run_on_a_recipes_data_that_a_callback_ends_is_resumed(tmp_path: Path) -> None:
    settings = {
        "env": "robotics/PointMaze-TwoRoutes-v0", "algorithm": "bc", "policy": "gaussian",
        "policy.hidden": [8], "dataset": "two_routes", "dataset.episodes": 4,
        "offline_steps": 40, "eval_every": 20, "eval_episodes": 1, "out": str(tmp_path),
    }  # fmt: skip
    early = trimtab.train(settings, callbacks=[Stops("evaluation", 20)])
    assert early.stopped_early
    assert not trimtab.train(settings).stopped_early


class Stops(trimtab.Callback):
    """Asks the run to stop in one of its methods, and counts what it is told."""

    def __init__(self, where: str, least: int = 30) -> None:
        self.where, self.least = where, least
        self.told: list[tuple[str, int]] = []

    def tell(self, what: str, now: trimtab.RunProgress) -> None:
        self.told.append((what, now.position))
        if what == self.where and now.position >= self.least:
            now.stop()

    def on_evaluation(self, now: trimtab.RunProgress, scores: Mapping[str, float | None]) -> None:
        self.tell("evaluation", now)

    def on_checkpoint(self, now: trimtab.RunProgress) -> None:
        self.tell("checkpoint", now)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("evaluation", [("evaluation", 40), ("checkpoint", 40)]),
        ("checkpoint", [("evaluation", 40), ("checkpoint", 50), ("evaluation", 50)]),
    ],
)
def test_a_callback_that_ends_a_run_is_told_nothing_twice(
    where: str, told: list[tuple[str, int]], tmp_path: Path
) -> None:
    callback = Stops(where)
    run = trimtab.train(settings_of(tmp_path), callbacks=[callback])
    assert run.stopped_early and callback.told == told
    rows = run.episodes().to_pylist()
    assert [row["env_steps"] for row in rows][-2:] == [told[-1][1]] * 2
    assert len(rows) == 2 * len({at for what, at in told if what == "evaluation"})
    assert all(dict(row["metrics"]).get("stopped_early") for row in rows[-2:])


def test_an_export_takes_settings_of_acting(tiny: Any, tmp_path: Path) -> None:
    fast = trimtab.export(tiny.base, tmp_path / "fast", sampling_steps=1)
    config = json.loads((fast / "config.json").read_text())
    assert config["changed"] == {"sampling_steps": {"from": 2, "to": 1}}
    with pytest.raises(TrimtabError, match="sampling_step: .*did you mean sampling_steps"):
        trimtab.export(tiny.base, tmp_path / "none", sampling_step=1)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(TrimtabError, match="std: .* has no settings of acting; leave them out"):
        trimtab.export(tmp_path / "model.onnx", tmp_path / "none", contract="c.yaml", std=0.1)
    assert not (tmp_path / "none").exists()


def test_a_run_is_exported_and_opened(from_words: Path, tmp_path: Path) -> None:
    run = TrainedRun(from_words, {}, True)
    bundle = trimtab.export(run, tmp_path / "bundle")
    assert bundle == tmp_path / "bundle" and (bundle / "policy.onnx").is_file()
    obs = np.linspace(-1, 1, 11)
    steps = [
        trimtab.load_policy(one, deterministic=True).step(obs)
        for one in (run, str(from_words), bundle)
    ]
    assert np.allclose(steps[0], steps[2], atol=1e-6) and np.array_equal(steps[0], steps[1])
    assert not (from_words / "policy" / "policy.onnx").exists()


def test_a_black_box_is_exported_and_opened(from_words: Path, tmp_path: Path) -> None:
    box = trimtab.export(str(from_words), str(tmp_path / "box"), weights=False)
    assert not (box / "model.safetensors").exists()
    assert trimtab.load_policy(box).step(np.zeros(11)).shape == (3,)


@pytest.mark.parametrize("function", ["load_policy", "export"])
def test_what_has_no_policy_is_one_line(function: str, from_words: Path, tmp_path: Path) -> None:
    begun = tmp_path / "seed0"
    begun.mkdir()
    (begun / "provenance.json").write_text("{}")
    more = [tmp_path / "out"] if function == "export" else []
    for wrong in (tmp_path / "absent", tmp_path, begun, 3, from_words / "result.json"):
        with pytest.raises(TrimtabError) as told:
            getattr(trimtab, function)(wrong, *more)
        assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_scores_and_tables_are_those_of_the_commands(
    from_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = trimtab.evaluate(from_words, episodes=4, seed=3)
    assert command(["evaluate", f"policy={from_words}", "episodes=4", "seed=3", "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [x["return"] for x in told["episodes"]] == [x.return_ for x in scores.episodes]
    board = trimtab.leaderboard(from_words)
    assert command(["leaderboard", f"runs={from_words}", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(board.to_json())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"online_step": 5}, "online_step: there is no such setting"),
        ({"algorithm": "sacc"}, "algorithm=sacc: did you mean sac"),
        ({"seed": object()}, "seed is of type object"),
        ({"seed": "one"}, "must be a whole number"),
        ({"algorithm.hiden": [8]}, "sac has no such setting; did you mean hidden"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=said) as told:
        trimtab.train({**settings_of(tmp_path / "o"), **settings})
    assert "\n" not in str(told.value) and not (tmp_path / "o").exists()


def test_a_setting_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="seed is given twice"):
        trimtab.train({**settings_of(tmp_path), "seed": 1}, seed=2)


def test_a_wrong_way_to_evaluate_is_one_line(from_words: Path, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="backend=onx: did you mean onnx?"):
        trimtab.evaluate(from_words, backend="onx")
    with pytest.raises(TrimtabError, match="no config.json"):
        trimtab.evaluate(tmp_path)


@pytest.mark.parametrize("name", ["a b", "it's", "x=1, (y)", "ü[1]"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    settings = {**settings_of(tmp_path / name), "online_steps": 45, "eval_every": None}
    assert trimtab.train(settings).folder.is_relative_to(tmp_path / name)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda run: trimtab.train("seed=1"), "settings is of type str; give a mapping"),
        (lambda run: trimtab.train(callbacks=[Heard]), "holds the class Heard; give a list of obj"),
        (
            lambda run: trimtab.train(callbacks=Heard()),
            "callbacks is something of type Heard; give a list of obj",
        ),
        (lambda run: trimtab.train(callbacks=[len]), "of type builtin_function_or_method; give"),
        (lambda run: trimtab.train(callbacks=None), "of type NoneType; give a list of objects"),
        (lambda run: trimtab.evaluate(None), "evaluate: policy is of type NoneType; give one path"),
        (lambda run: trimtab.evaluate(run, episodes="x"), "episodes='x': must be a whole number"),
        (lambda run: trimtab.evaluate(run, seed=-1), "seed=-1: must be a whole number from 0"),
        (lambda run: trimtab.evaluate(run, 3), "env is a task's id, and env_options a mapping"),
        (lambda run: trimtab.leaderboard([run]), "runs is of type list; give one path"),
        (lambda run: trimtab.leaderboard(run, out=["x"]), "out is of type list; give one path"),
        (lambda run: trimtab.leaderboard(run, metric="x"), "metric=x: there are: "),
        (lambda run: trimtab.train(seed=[0, 1]), "seed=[0, 1]: is one value of one run; call tr"),
        (lambda run: trimtab.evaluate(""), "evaluate: policy is empty; give a path, such as '.'"),
        (lambda run: trimtab.train({"a b": 3}), "'a b' is no name of a setting; names are text"),
        (lambda run: trimtab.train({3: 3}), "train: 3 is no name of a setting; names are text"),
        (lambda run: trimtab.load_policy(None), "of type NoneType; give the folder of a bundle"),
        (lambda run: trimtab.export(run, None), "out is of type NoneType; give one path"),
        (lambda run: trimtab.export(run, run / "policy"), "is the policy of the run"),
        (lambda run: runtime.load_policy(run), "is a run; trimtab export makes a bundle"),
    ],
)
def test_what_is_no_setting_is_one_line(
    call: Callable[[Path], Any], told: str, from_words: Path
) -> None:
    with pytest.raises(TrimtabError, match=re.escape(told)) as error:
        call(from_words)
    assert "\n" not in str(error.value)


def test_options_of_a_task_have_the_same_form_in_each_command(
    from_words: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = []
    for word in ("env_options.horizon=20", "env_options={horizon: 20}"):
        words = ["evaluate", f"policy={from_words}", "episodes=2", "format=json", word]
        assert command(words) == 0
        told.append(json.loads(capfd.readouterr().out))
    assert told[0] == told[1] and told[0]["env_options"]["horizon"] == 20
    with pytest.raises(TrimtabError, match="env_options.*offline=true"):
        command(["evaluate", "offline=true", "policy=x", "env_options.horizon=20"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: trimtab.evaluate("x", episode=2), "'episode'; did you mean episodes"),
        (
            lambda: trimtab.evaluate("x", video="a.mp4"),
            "evaluate: .*'video'; there are: policy, env",
        ),
        (lambda: trimtab.evaluate(), "evaluate: missing a required argument: 'policy'"),
        (lambda: trimtab.leaderboard("x", metrics="return"), "'metrics'; did you mean metric"),
        (lambda: trimtab.export("x"), "export: missing a required argument: 'out'"),
        (lambda: trimtab.load_policy("x", 3), "load_policy: too many positional arguments"),
        (lambda: trimtab.load_policy("nowhere"), "load_policy: there is no folder nowhere"),
        (lambda: trimtab.train({}, {}), "train: too many positional arguments"),
        (
            lambda: trimtab.train({"algorithm": "sac", "seed": 1}, algoritm="sac"),
            "^algoritm: .*did you mean algorithm",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TrimtabError, match=said) as told:
        call()
    assert "\n" not in str(told.value)


def test_a_run_stands_for_its_folder(from_words: Path) -> None:
    run = TrainedRun(from_words, {}, True)
    assert len(trimtab.evaluate(run, episodes=np.int64(2)).episodes) == 2
    assert trimtab.leaderboard(run).tables == trimtab.leaderboard(from_words).tables


def test_what_the_package_offers_is_imported_when_it_is_used() -> None:
    assert set(trimtab.__all__) <= set(dir(trimtab))
    assert all(getattr(trimtab, name) is not None for name in trimtab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        trimtab.trian  # noqa: B018
    code = "import sys, trimtab; trimtab.load_policy; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_notebook_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((root / "docs" / "examples" / "from_python.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert [steps for steps, _ in names["watch"].curve] == [250, 500, 750, 1000]
    assert len(names["scores"].episodes) == 20 and len(names["board"].tables) == 1
    assert names["observations"].shape == (4, 4)
