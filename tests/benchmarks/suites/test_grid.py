"""A grid with frozen bases: which runs it becomes, at which scale, and what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.benchmarks.cli.records import methods_of
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.types import TrimtabError

DOCUMENT: dict[str, Any] = {
    "title": "Mine",
    "seeds": [0, 1],
    "controls": ["frozen"],
    "grid": {
        "bases": {"flow": ["policy=flow"], "diffusion": ["policy=diffusion"]},
        "clone": ["algorithm=bc"],
        "where_known": ["algorithm.warmup_steps=7"],
        "tasks": {
            "hop": {
                "clone": ["env=gym/Hopper-v5", "dataset=hopper_medium"],
                "words": ["env=gym/Hopper-v5"],
                "budget": ["online_steps=99"],
            },
            "walk": {"clone": ["env=gym/Walker2d-v5"], "words": ["env=gym/Walker2d-v5"]},
        },
        "methods": {
            "frozen": {"words": ["algorithm=frozen"], "budget": False},
            "dsrl_sac": ["algorithm=dsrl_sac"],
            "sac": {"words": ["algorithm=sac"], "base": False, "seconds": 5},
        },
        "variants": {"dsrl_sac": {"wide": ["algorithm.magnitude=3.0"]}},
    },
    "scale": {
        "whole": {},
        "small": {
            "seeds": [4], "tasks": ["hop"], "bases": ["flow"], "words": ["eval_episodes=2"],
            "clone": ["offline_steps=3"], "budget": ["online_steps=5"], "variants": [],
        },
    },
}  # fmt: skip


def suite_of(document: dict[str, Any], folder: Path, scale: str | None = None) -> Any:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return load_suite(str(file), "runs", scale=scale)


def test_every_method_starts_from_the_base_of_its_task(tmp_path: Path) -> None:
    jobs = {(job.name, job.seed): job for job in suite_of(DOCUMENT, tmp_path).jobs}
    # Two tasks: two bases, from each of them two methods and a variant, and one from nothing.
    assert len(jobs) == 2 * 2 * (2 + 2 * 3 + 1)
    steered = jobs["hop-flow-dsrl_sac", 1]
    assert steered.base == "hop-flow"
    assert steered.place == {
        "task": "hop", "base": "flow", "method": "dsrl_sac", "variant": None
    }  # fmt: skip
    assert {"env=gym/Hopper-v5", "online_steps=99", "algorithm.warmup_steps=7"} <= {
        *steered.overrides
    }
    assert {"policy=flow", "algorithm=bc", "dataset=hopper_medium"} <= {
        *jobs["hop-flow", 0].overrides
    }
    wide = jobs["walk-diffusion-dsrl_sac~wide", 0]
    assert "algorithm.magnitude=3.0" in wide.overrides and wide.place["variant"] == "wide"
    frozen = jobs["hop-flow-frozen", 0].overrides  # it learns nothing and has no such setting
    assert not {"online_steps=99", "algorithm.warmup_steps=7"} & {*frozen}
    scratch = jobs["hop-sac", 0]
    assert scratch.base is None and scratch.seconds == 5


def test_a_scale_narrows_the_grid(tmp_path: Path) -> None:
    suite = suite_of(DOCUMENT, tmp_path, "small")
    assert [(job.name, job.seed) for job in suite.jobs] == [
        ("hop-flow", 4), ("hop-flow-frozen", 4), ("hop-flow-dsrl_sac", 4), ("hop-sac", 4),
    ]  # fmt: skip
    clone, frozen, steered, _ = suite.jobs
    assert {"offline_steps=3", "eval_episodes=2"} <= {*clone.overrides}
    assert "online_steps=5" not in frozen.overrides
    words = list(steered.overrides)
    assert words.index("online_steps=5") > words.index("online_steps=99")  # the last one counts
    assert suite.controls == ("frozen",)


def test_a_task_has_its_own_word_on_clones_and_a_scale_the_last(tmp_path: Path) -> None:
    grid = {**DOCUMENT["grid"], "clone": ["algorithm=bc", "stop_at_success=0.45"]}
    hop = {**grid["tasks"]["hop"]}
    hop["clone"] = [*hop["clone"], "stop_at_success=null"]
    document = {**DOCUMENT, "grid": {**grid, "tasks": {**grid["tasks"], "hop": hop}}}
    for scale, last in ((None, "null"), ("small", "0.0")):
        if scale:
            small = {**document["scale"][scale], "clone": ["stop_at_success=0.0"]}
            document = {**document, "scale": {scale: small}}
        clone, *_ = suite_of(document, tmp_path, scale).jobs
        said = [word for word in clone.overrides if word.startswith("stop_at_success=")]
        assert said[-1] == f"stop_at_success={last}"


def test_some_runs_come_with_the_bases_that_they_start_from(tmp_path: Path) -> None:
    whole, file = suite_of(DOCUMENT, tmp_path), tmp_path / "mine.yaml"
    suite = load_suite(str(file), "runs", [1], only=["*-dsrl_sac", "walk-sac"])
    assert [job.name for job in suite.jobs] == [
        "hop-flow", "hop-diffusion", "hop-flow-dsrl_sac", "hop-diffusion-dsrl_sac",
        "walk-flow", "walk-diffusion", "walk-flow-dsrl_sac", "walk-diffusion-dsrl_sac", "walk-sac",
    ]  # fmt: skip
    alone = load_suite(str(file), "runs", only=["walk-sac"])
    assert [job.label for job in alone.jobs] == ["walk-sac seed 0", "walk-sac seed 1"]
    assert alone.jobs == whole.jobs[-2:]  # the same runs, to the word
    with pytest.raises(
        TrimtabError, match="only=walk-sax: no run .* is called that; did you mean wa"
    ):
        load_suite(str(file), "runs", only=["walk-sax"])


def test_a_method_is_run_on_its_own_tasks_and_a_scale_leaves_runs_out(tmp_path: Path) -> None:
    document = {
        "title": "Mine",
        "seeds": [0],
        "grid": {
            "tasks": {"hop": ["env=gym/Hopper-v5"], "walk": ["env=gym/Walker2d-v5"]},
            "methods": {
                "sac": ["algorithm=sac"],
                "ppo": {"words": ["algorithm=ppo"], "tasks": ["walk"], "seconds": 7},
            },
        },
        "scale": {
            "whole": {},
            "small": {"leave_out": ["hop-*"]},
            "none": {"leave_out": ["hip-*"]},
            "nothing": {"leave_out": ["*"]},
            "twice": {"leave_out": ["*-ppo", "walk-ppo"]},
            "more": {"seeds": [3], "seeds_of": {"walk-*": [4, 5], "*-ppo": [6]}},
            "strange": {"seeds_of": {"hip-*": [1]}},
            "wide": {"words": ["num_envs=2"], "words_of": {"walk-*": ["num_envs=4"]}},
            "odd": {"words_of": {"hip-*": ["num_envs=4"]}},
        },
    }
    more = {(job.name, job.seed) for job in suite_of(document, tmp_path, "more").jobs}
    assert more == {("hop-sac", 3), ("walk-sac", 4), ("walk-sac", 5), ("walk-ppo", 6)}
    with pytest.raises(TrimtabError, match=r"its scale's seeds_of names no run by hip-\*"):
        suite_of(document, tmp_path, "strange")
    wide = {
        job.name: compose_run(job.overrides)["num_envs"]
        for job in suite_of(document, tmp_path, "wide").jobs
    }
    assert wide == {"hop-sac": 2, "walk-sac": 4, "walk-ppo": 4}
    with pytest.raises(TrimtabError, match=r"its scale's words_of names no run by hip-\*"):
        suite_of(document, tmp_path, "odd")
    for wrong, told in (
        ([1], "seeds_of must be a mapping"),
        ({"*": [1, 1]}, r"seeds_of.\*=\[1, 1\]: mu"),
    ):
        one = {**document, "scale": {"whole": {"seeds_of": wrong}}}
        with pytest.raises(TrimtabError, match=rf"scale.whole.*{told}"):
            suite_of(one, tmp_path)
    for key in ("bases", "variants", "clone", "budget", "data"):
        one = {**document, "scale": {"whole": {}, "small": {key: []}}}
        with pytest.raises(TrimtabError, match=f"scale.small.{key} needs bases, which the suite"):
            suite_of(one, tmp_path)
    listed = {"title": "Mine", "seeds": [0], "runs": {"a": {"overrides": ["algorithm=sac"]}}}
    for key in ("tasks", "methods", "leave_out", "where_known", "budget"):
        one = {**listed, "scale": {"small": {key: ["a"]}}}
        with pytest.raises(TrimtabError, match=f"scale.small.{key} needs a grid, which the suite"):
            suite_of(one, tmp_path)
    jobs = {job.name: job for job in suite_of(document, tmp_path).jobs}
    assert set(jobs) == {"hop-sac", "walk-sac", "walk-ppo"} and jobs["walk-ppo"].seconds == 7
    assert {job.name for job in suite_of(document, tmp_path, "small").jobs} == {
        "walk-sac", "walk-ppo",
    }  # fmt: skip
    assert {job.name for job in suite_of(document, tmp_path, "twice").jobs} == {
        "hop-sac", "walk-sac",
    }  # fmt: skip
    file = str(tmp_path / "mine.yaml")
    with pytest.raises(
        TrimtabError, match="only=hop-sax: no run of this scale is called that; there are: walk-s"
    ):
        load_suite(file, "runs", scale="small", only=["hop-sax"])
    with pytest.raises(TrimtabError, match=r"its scale's leave_out names no run by hip-\*"):
        suite_of(document, tmp_path, "none")
    with pytest.raises(TrimtabError, match="has no run that its scale does not leave out"):
        suite_of(document, tmp_path, "nothing")
    for key, value, told in (
        ("tasks", ["hip"], "grid.methods.ppo names hip of tasks; did you mean hop"),
        ("tasks", "hop", "grid.methods.ppo.tasks must be a list"),
        ("budget", False, "grid.methods.ppo has no budget"),
        ("words", "x", "grid.methods.ppo.words must be a list of words"),
    ):
        wrong: Any = copy.deepcopy(document)
        wrong["grid"]["methods"]["ppo"][key] = value
        with pytest.raises(TrimtabError, match=told):
            suite_of(wrong, tmp_path)


def test_published_settings_are_runs_beside_the_one_setting(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "title": "t", "seeds": [0],
        "grid": {
            "where_known": ["algorithm.warmup_steps=7"],
            "tasks": {"hop": ["env=gym/Hopper-v5"], "walk": ["env=gym/Walker2d-v5"]},
            "methods": {"sac": ["algorithm=sac", "algorithm.tau=0.1"], "ppo": ["algorithm=ppo"]},
            "published": {"sac": {"walk": ["algorithm.tau=0.2"]}, "ppo": {"hop": ["discount=0.9"]}},
        },
        "scale": {"whole": {}, "small": {"published": ["sac"]}},
    }  # fmt: skip
    suite = suite_of(document, tmp_path)
    jobs = {job.name: job for job in suite.jobs}
    assert [*jobs] == [
        "hop-sac", "hop-ppo", "hop-ppo~published", "walk-sac", "walk-sac~published", "walk-ppo",
    ]  # fmt: skip
    tuned = jobs["walk-sac~published"]
    assert tuned.place == {"task": "walk", "method": "sac", "variant": "published"}
    # After the method's own words, and before what a scale sets for all.
    given = [word for word in tuned.overrides if word.startswith("algorithm")]
    assert given == [
        "algorithm=sac", "algorithm.tau=0.1", "algorithm.tau=0.2", "algorithm.warmup_steps=7",
    ]  # fmt: skip
    # Settings that are none of their own are the same configuration, whose name is the plain one.
    places = [{"method": "sac"}, {"method": "sac", "variant": "published"}]
    for order in (places, places[::-1]):
        records = [{"config_hash": "a", "place": place} for place in order]
        assert methods_of(records) == {"a": "sac"}
    small = {job.name for job in suite_of(document, tmp_path, "small").jobs}
    assert small == {*jobs} - {"hop-ppo~published"}
    for method, task, said in (
        ("sack", "hop", "grid.published names sack of methods; did you mean sac"),
        ("sac", "hip", "grid.published.sac names hip of tasks; did you mean hop"),
    ):
        document["grid"]["published"] = {method: {task: []}}
        with pytest.raises(TrimtabError, match=said):
            suite_of(document, tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            ("grid", "tasks", "hop"),
            ["env=gym/Hopper-v5"],
            "grid.tasks.hop must be a mapping with clone, words",
        ),
        (
            ("grid", "methods", "frozen", "basis"),
            1,
            "methods.frozen has no basis; did you mean base",
        ),
        (("grid", "bodies"), {}, "grid has no bodies; there are: methods"),
        (("scale", "small", "tasks"), ["hup"], "names hup of tasks; did you mean hop"),
        (("grid", "published"), {"sac": {"hop": []}}, "grid has no published"),
        (("scale", "small", "published"), ["sac"], "small.published needs a grid without bases"),
        (("grid", "tasks", "hop", "words"), None, "grid.tasks.hop.words must be a list"),
        (("scale", "small", "seeds"), 3, "scale.small.seeds=3: must be whole numbers"),
        (
            ("grid", "methods", "frozen"),
            {"budget": True},
            "frozen must have words; it has no words",
        ),
        (("grid", "methods", "frozen"), ["online_steps=1"], "frozen must name one algorithm=, no"),
        (("grid", "methods", "sac", "base"), "flow", "sac.base must be true, false or a list"),
        (("grid", "methods", "sac", "base"), ["flo"], "sac names flo of bases; did you mean flow"),
        (("grid", "methods", "sac", "seconds"), "long", "sac.seconds=long: must be a number above"),
        (("grid", "tasks", "hop", "words"), [1], "hop.words has 1, which is no word; quote it"),
        (
            ("grid", "tasks", "hop", "bugdet"),
            [],
            "grid.tasks.hop has no bugdet; did you mean budget",
        ),
        (("grid", "bases", 1), [], "grid.bases has the name 1, which is no text; quote it"),
        (("grid", "variants", "sack"), {}, "grid.variants names sack of methods; did you mean sac"),
        (
            ("grid", "methods", "sac", "budget"),
            "perhaps",
            "sac.budget=perhaps: must be true or false",
        ),
        (("figure",), {}, "figure must have panels"),
        (
            ("figure",),
            {"panels": [], **dict.fromkeys(("open", "seed", "episodes", "eval_seed"), 1)},
            "figure.panels must be a list",
        ),
        (("controls",), ["nope"], "controls: there is no method 'nope'"),
    ],
)
def test_a_wrong_grid_is_one_line(
    tmp_path: Path, place: tuple[str, ...], value: Any, message: str
) -> None:
    document = copy.deepcopy(DOCUMENT)
    section = document
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = value
    with pytest.raises(TrimtabError, match=message) as caught:
        suite_of(document, tmp_path, "small")
    assert "\n" not in str(caught.value)
