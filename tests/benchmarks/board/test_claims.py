"""Claims against rows whose answer is known: one that holds, one that does not, each kind."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t as student

from trimtab.benchmarks.board.arena.claim_list import (
    DATA_KINDS,
    KINDS,
    Claim,
    check_names,
    read_claims,
)
from trimtab.benchmarks.board.arena.claims import _DATA_JUDGES, _JUDGES, find, steps_to
from trimtab.benchmarks.board.arena.findings import Finding, to_markdown
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest, CurvePoint
from trimtab.benchmarks.board.data_contests import contests_of
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table
from trimtab.types import TrimtabError


def row(method: str, finals: tuple[float, ...], curve: dict[int, float], control: str) -> ArenaRow:
    score = Interval(sum(finals) / len(finals), 0.0, 1.0)
    return ArenaRow(
        task="x", base="flow", method=method, variant=None, algorithm=method, config_hash=method,
        seeds=tuple(range(len(finals))), score=score, return_=0.0, area=score.value, regret=0.0,
        worst_drop=0.0, gain=None, control=control, control_gain=None, episodes=0.0, seconds=0.0,
        trained_parameters=0, base_distance=None, torch_ms=None, onnx_ms=None,
        demonstrations=False, finals=finals, areas=tuple(1 - one for one in finals),
        curve=tuple(
            CurvePoint(step, 0.0, 0.0, Interval(value, value, value), 0.0)
            for step, value in curve.items()
        ),
        episode_scores=tuple(np.full(50, one) for one in finals),
    )  # fmt: skip


@pytest.fixture(scope="module")
def arena() -> Arena:
    fast = row("fast", (0.9, 0.8, 0.9, 0.85, 0.95), {100: 0.9, 1000: 0.88}, "zero")
    slow = row("slow", (0.5, 0.6, 0.5, 0.55, 0.45), {500: 0.4, 1000: 0.7}, "zero")
    zero = row("zero", (0.6, 0.5, 0.55, 0.6, 0.5), {0: 0.55}, "")
    frozen = Interval(0.4, 0.3, 0.5)
    return Arena(
        (Contest("x", "gym/X-v0", "flow", "success", frozen, (fast, slow, zero)),), (), ("zero",)
    )


CLAIMS = """
- {text: faster is higher, source: us, tier: ours, kind: higher, method: fast, than: slow}
- {text: slower is higher, source: us, tier: ours, kind: higher, method: slow, than: fast}
- {text: slow beats zero, source: us, tier: ours, kind: control, method: slow}
- {text: fast is sooner, source: us, tier: ours, kind: sooner, method: fast, than: slow, factor: 5}
- {text: slow is sooner, source: us, tier: ours, kind: sooner, method: slow, than: fast, factor: 5}
- {text: elsewhere, source: us, tier: ours, kind: higher, method: fast, than: slow, tasks: [y]}
- {text: by area, source: us, tier: ours, kind: higher, method: slow, than: fast, measure: area}
"""


def test_each_kind_of_claim(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    findings = find(read_claims(tmp_path / "claims.yaml"), arena)
    assert [one.verdict for one in findings] == [
        "better", "worse", "not told yet", "better", "worse", "not told yet", "better",
    ]  # fmt: skip
    assert findings[0].better is not None and findings[0].better.value == 1.0
    assert findings[0].difference == pytest.approx((0.36, 0.2184, 0.5016), abs=1e-4)
    assert findings[5].contests == 0
    text = to_markdown(findings)
    assert text.count("| **better** |") == 3 and "no contest has both" in text


def test_every_kind_has_its_judge() -> None:
    assert (*_JUDGES,) == KINDS and (*_DATA_JUDGES,) == DATA_KINDS


def claim(kind: str, method: str, than: str, **more: float) -> Claim:
    return Claim("a", "us", "ours", kind, method, than, **more)  # type: ignore[arg-type]


def test_runs_from_nothing_count_once() -> None:
    """They stand beside each kind of base, and say no more for it."""
    levels = {"flow": (0.6, 0.7, 0.8), "diffusion": (0.7, 0.8, 0.9)}
    nothing = replace(row("none", (0.1, 0.2, 0.3), {0: 0.2}, ""), base=None)
    found = [
        Contest("x", "gym/X-v0", base, "success", None, (
            replace(row("ours", finals, {0: 0.2}, ""), base=base, config_hash=base), nothing,
        ))
        for base, finals in levels.items()
    ]  # fmt: skip
    both, one = (
        find([claim("higher", "ours", "none")], Arena((*contests,), (), ()))[0]
        for contests in (found, found[:1])
    )
    assert both.better == one.better and both.contests == 1
    assert both.difference == pytest.approx((0.55, 0.343, 0.757), abs=1e-3)  # of episodes alone
    assert "x (flow) 0.70 against 0.20; x (diffusion) 0.80 against 0.20" in both.numbers
    assert both.verdict == "better"
    apart = [
        replace(contest, rows=(contest.rows[0], replace(nothing, base=contest.base)))
        for contest in found
    ]
    two = find([claim("higher", "ours", "none")], Arena((*apart,), (), ()))[0]
    assert two.contests == 2 and two.better != one.better


def test_runs_with_other_numbers_of_episodes_are_compared_in_the_first_starts(
    arena: Arena,
) -> None:
    contest = arena.contests[0]
    fast, slow, zero = contest.rows
    short = replace(slow, episode_scores=tuple(np.full(10, one) for one in slow.finals))
    mixed = Arena((replace(contest, rows=(fast, short, zero)),), (), ("zero",))
    for one in (claim("higher", "fast", "slow"), claim("control", "slow", "")):
        found, known = (find([one], each)[0] for each in (mixed, arena))
        assert found.difference is not None and known.difference is not None
        assert found.difference.value == pytest.approx(known.difference.value)


def test_a_claim_with_looks_is_read_at_these_alone_and_stays_told(arena: Arena) -> None:
    """At three seeds the boundary of a plan of five asks for much; nothing is read at four."""
    contest = arena.contests[0]
    _, slow, zero = contest.rows
    finals = (0.9, 0.82, 0.9, 0.85, 0.95)

    def finding(looks: tuple[int, ...], seeds: int) -> Finding:
        fast = row("fast", finals[:seeds], {0: 0.9}, "zero")
        arena = Arena((replace(contest, rows=(fast, slow, zero)),), (), ("zero",))
        (found,) = find([replace(claim("higher", "fast", "slow"), looks=looks)], arena)
        return found

    def told(looks: tuple[int, ...], seeds: int) -> str:
        return finding(looks, seeds).verdict

    assert told((), 3) == "better" and told((3,), 3) == "better"
    assert told((3, 5), 3) == told((3, 5), 4) == "not told yet"
    assert told((3, 5), 5) == "better"
    # Three would do at 95 percent, but the next reading is at five.
    assert finding((3, 5), 3).missing.startswith("5 seeds a contest of fast and slow")
    # What a look has told, later seeds do not take back.
    finals = (0.9, 0.81, 0.9, 0.0, 0.0)
    assert told((), 5) == "not told yet" and told((3,), 5) == "better"


def test_a_look_is_read_once_every_control_has_its_seeds() -> None:
    """Until then the best control may be one that is still missing."""
    ours = row("ours", (0.8, 0.81, 0.79, 0.8, 0.8), {0: 0.8}, "zero")
    zero = row("zero", (0.5, 0.52, 0.5, 0.51, 0.49), {0: 0.5}, "")
    asked = replace(claim("control", "ours", ""), looks=(2, 5))

    def told(*finals: float) -> str:
        other = row("other", finals, {0: 0.7}, "")
        contest = Contest("x", "gym/X-v0", "flow", "success", None, (ours, zero, other))
        (found,) = find([asked], Arena((contest,), (), ("zero", "other")))
        return found.verdict

    assert told(0.5, 0.5) == told(0.5, 0.5, 0.5, 0.5) == "not told yet"
    assert told(0.5, 0.5, 0.5, 0.5, 0.5) == "better"


def test_a_claim_may_be_judged_by_some_of_the_seeds(arena: Arena) -> None:
    contest = arena.contests[0]
    ahead = row("late", (0.1, 0.2, 0.1, 0.9, 1.0), {0: 0.1}, "zero")
    both = Arena((replace(contest, rows=(ahead, *contest.rows)),), (), ("zero",))
    late = replace(claim("control", "late", ""), seeds=(3, 4))
    (found,) = find([late], both)
    assert found.numbers.endswith("x (flow) 0.95 against 0.55") and found.contests == 1
    (every,) = find([replace(late, seeds=())], both)
    assert every.numbers.endswith("x (flow) 0.46 against 0.55")
    (none,) = find([replace(late, seeds=(7,))], both)
    assert (none.verdict, none.numbers) == ("not told yet", "no contest has both")


def test_the_control_may_be_picked_by_other_seeds_than_those_that_judge() -> None:
    """By all seeds the lucky one is the best control; by the first three the steady one is."""
    rows = (
        row("ours", (0.7, 0.7, 0.7, 0.7, 0.7), {0: 0.7}, "lucky"),
        row("steady", (0.6, 0.6, 0.6, 0.6, 0.6), {0: 0.6}, ""),
        row("lucky", (0.5, 0.5, 0.5, 1.0, 1.0), {0: 0.5}, ""),
    )
    contest = Contest("x", "gym/X-v0", "flow", "success", None, rows)
    arena = Arena((contest,), (), ("steady", "lucky"))
    judged = replace(claim("control", "ours", ""), seeds=(3, 4))
    by_all, by_first = find([judged, replace(judged, control_seeds=(0, 1, 2))], arena)
    assert by_all.numbers.endswith("x (flow) 0.70 against 1.00")
    assert by_first.numbers.endswith("x (flow) 0.70 against 0.60")
    judged_by = [(one.difference.value, one.held_out.value) for one in (by_all, by_first)
                 if one.difference and one.held_out]  # fmt: skip
    assert judged_by == [pytest.approx((-0.3, -0.3)), pytest.approx((0.1, 0.1))]
    (nobody,) = find([replace(judged, control_seeds=(9,))], arena)
    assert nobody.contests == 0


def varying(method: str, runs: NDArray[np.float64]) -> ArenaRow:
    """Return a row whose episodes ``[seeds, starts]`` differ."""
    bare = row(method, tuple(runs.mean(1)), {0: float(runs.mean())}, "")
    return replace(bare, episode_scores=tuple(runs), seconds=360.0)


def test_a_difference_has_its_variance_over_seeds_and_over_starts() -> None:
    """Two contests of one task, whose seeds and starts have effects; all of it worked out here."""
    rng = np.random.default_rng(0)
    contests, seeds, starts = [], 4, 30
    differences = []
    for base in ("flow", "diffusion"):
        hard = rng.normal(0.0, 0.3, starts)
        ours = rng.normal(0.6, 0.3, (seeds, 1)) + hard + rng.normal(0.0, 0.1, (seeds, starts))
        theirs = rng.normal(0.5, 0.3, (seeds, 1)) + rng.normal(0.0, 0.1, (seeds, starts))
        rows = (varying("ours", ours), varying("zero", theirs))
        contests.append(Contest("x", "gym/X-v0", base, "success", None, rows))
        differences.append(ours - theirs)
    found, control = find(
        [claim("higher", "ours", "zero"), claim("control", "ours", "")],
        Arena(tuple(contests), (), ("zero",)),
    )
    parts = [one.mean(1).var(ddof=1) / seeds for one in differences]
    freedom = sum(parts) ** 2 / sum(part**2 / (seeds - 1) for part in parts)
    wide, narrow = student.isf(0.025, freedom), student.isf(0.025, starts - 1)
    of_starts = 0.0
    for one in differences:
        residual = one - one.mean(1, keepdims=True) - one.mean(0) + one.mean()
        error = (residual**2).sum() / ((seeds - 1) * (starts - 1))
        of_starts += math.sqrt((seeds * one.mean(0).var(ddof=1) - error) / (seeds * starts))
    error = math.hypot(math.sqrt(sum(parts)), narrow / wide * of_starts) / 2
    value = np.mean([one.mean() for one in differences])
    assert found.difference == pytest.approx((value, value - wide * error, value + wide * error))
    p_value = 2 * student.sf(abs(value) / error, freedom)
    assert found.p_value == pytest.approx(p_value)
    assert control.p_value == pytest.approx(p_value)  # of the one control, on either side
    assert control.held_out == pytest.approx(found.difference)


def test_a_control_with_one_shared_seed_is_none_and_missing_runs_are_counted_one_by_one() -> None:
    rng = np.random.default_rng(1)
    ours, zero, other = (rng.normal(level, 0.2, (5, 50)) for level in (0.55, 0.5, 0.9))
    rows = (varying("ours", ours[:3]), varying("zero", zero), varying("other", other[:1]))
    contest = Contest("x", "gym/X-v0", "flow", "success", None, rows)
    arena = Arena((contest,), (), ("zero", "other"))
    (found,) = find([claim("control", "ours", "")], arena)
    assert found.difference is not None
    assert found.difference.value == pytest.approx((ours[:3] - zero[:3]).mean())
    assert found.seeds_to_tell is not None
    # Each run takes a tenth of an hour: those of all three sides that are not there.
    hours = sum(max(found.seeds_to_tell - there, 0) for there in (3, 5, 1)) / 10
    assert f"{found.seeds_to_tell} seeds a contest of ours and its controls" in found.missing
    assert f", {hours:.1f} core-hours more" in found.missing


def test_most_contests_are_counted() -> None:
    def arena_of(higher: int, all_of_them: int) -> Arena:
        contests = [
            Contest(f"t{n}", "gym/X-v0", "flow", "success", None, (
                row("a", (0.5, 0.6), {0: 0.5}, ""),
                row("b", (0.4, 0.5) if n < higher else (0.6, 0.7), {0: 0.5}, ""),
            ))
            for n in range(all_of_them)
        ]  # fmt: skip
        return Arena((*contests,), (), ())

    found = {
        counts: find([claim("most", "a", "b")], arena_of(*counts))[0]
        for counts in ((5, 6), (6, 6), (0, 6), (0, 0))
    }
    verdicts = [one.verdict for one in found.values()]
    assert verdicts == ["not told yet", "better", "worse", "not told yet"]
    # Clopper and Pearson: all of six, 0.025 ** (1 / 6) to 1.
    assert found[6, 6].numbers.startswith("in 6 of 6, a share of 1.00 [0.54, 1.00]: t0 (flow) 0.55")
    assert found[0, 0].contests == 0


def test_who_never_comes_there_says_something_only_in_a_long_budget(arena: Arena) -> None:
    """Half of fast's way is 0.64, which comes at 48 steps; slow never has it before 1000."""
    fast, slow, zero = arena.contests[0].rows
    later = replace(slow, curve=slow.curve[:1])  # to step 500, where it has 0.4
    contest = replace(arena.contests[0], rows=(fast, later, zero))
    for factor, verdict in ((5, "better"), (20, "not told yet")):
        (found,) = find([claim("sooner", "fast", "slow", factor=factor)], Arena((contest,), (), ()))
        assert found.verdict == verdict and found.numbers == "x (flow) 48 steps against never"


def test_a_claim_of_what_no_suite_has_is_one_line() -> None:
    places = {"": [{"task": "x", "base": "flow", "method": "fast"}, {"method": "slow"}]}
    check_names([claim("higher", "fast", "slow"), claim("higher", "", "")], places)
    for wrong, message in (
        (claim("higher", "fsat", "slow"), "claim 'a': method fsat; did you mean fast"),
        (replace(claim("higher", "fast", "slow"), tasks=("y",)), "task y"),
        (replace(claim("higher", "fast", "slow"), suite="offlin"), "suite offlin"),
    ):
        with pytest.raises(TrimtabError, match=message):
            check_names([wrong], places)


def test_steps_to_a_score_are_read_off_the_curve(arena: Arena) -> None:
    _, slow, _ = arena.contests[0].rows
    # From 0.4 at 0 and at 500 up to 0.7 at 1000: 0.55 is half of the way between those two.
    assert steps_to(slow, 0.4, 0.55) == pytest.approx(750)
    assert steps_to(slow, 0.4, 0.71) is None
    assert steps_to(slow, 0.5, 0.4) == pytest.approx(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {text: a, source: b, tier", "cannot be read"),
        ("text: a", "must be a list of claims"),
        ("- {text: a, source: b, tier: c, kind: higher, measure: x}", "use score or area"),
        ("- {text: a, source: b, tier: c, kind: louder}", "claim 1: kind 'louder'; use higher"),
        ("- {text: a, source: b, tier: c, kind: higher, about: 3}", "claim 1: .*unexpected"),
        ("- {text: a, source: b, tier: c, kind: higher, tasks: x}", "tasks: 'x' is no list of"),
        ("- {text: a, source: b, tier: c, kind: higher, tasks: [3]}", "is no list of names"),
        ("- {text: a, source: b, tier: c, kind: sooner, factor: five}", "'five' is no number"),
        ("- {text: a, source: b, tier: c, kind: sooner, factor: 0}", "0 is no number above 0"),
        ("- {text: a, source: b, tier: c, kind: higher, method: 3}", "method: 3 is no text"),
        (
            "- {text: a, source: b, tier: c, kind: higher, looks: [9, 3]}",
            "looks: at most 4",
        ),
        (
            "- {text: a, source: b, tier: c, kind: higher, looks: [2, 3, 4, 5, 6]}",
            "looks: at most 4",
        ),
        ("- {text: a, source: b, tier: c, kind: higher, margin: .inf}", "is no number above 0"),
        ("- {text: a, source: b, tier: c, kind: most, looks: [3]}", "only for claims of kind"),
        (
            "- {text: a, source: b, tier: c, kind: control, seeds: [1], control_seeds: [1]}",
            "control_seeds: 1 also judges",
        ),
        (
            "- {text: a, source: b, tier: c, kind: control, control_seeds: [1]}",
            "name the seeds that judge, too",
        ),
        ("- {text: a, source: b, tier: c, kind: higher, looks: [3]}", "name the tasks, too"),
        (
            "- {text: a, source: b, tier: c, kind: higher, tasks: [x], seeds: [3, 4], looks: [3]}",
            "the last one, 3, is more than the seeds, 2",
        ),
        ("- {text: a, source: b, tier: c, kind: higher, seeds: [3, 3]}", "name each once"),
        ("- {text: a, source: b, tier: c, kind: higher, margin: 5}", "5 is no share"),
        ("- {text: a, source: b, tier: c, kind: higher, margin: 0}", "0 is no number above 0"),
        ("- {text: a, source: b, tier: c, kind: higher, seeds: [x]}", "is no list of seeds"),
        ("- {text: a, source: b, tier: c, kind: higher, seeds: 3}", "is no list of seeds"),
        ("- {text: a, source: b, tier: c, kind: sooner, seeds: [3]}", "of kind higher or control"),
        ("- {text: a, source: b, tier: c, kind: higher, control_seeds: [3]}", "of kind control"),
    ],
)
def test_a_wrong_claim_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(TrimtabError, match=message) as caught:
        read_claims(tmp_path / "claims.yaml")
    assert "\n" not in str(caught.value)
    with pytest.raises(TrimtabError, match="cannot be read"):
        read_claims(tmp_path / "none.yaml")


DATA = """
- {text: iql is higher, source: us, tier: ours, suite: offline, kind: higher, method: iql, than: bc}
- {text: only mixed, source: us, tier: ours, suite: offline, kind: higher, method: iql, than: bc,
   tasks: [mixed]}
- {text: less drop, source: us, tier: ours, suite: switch, kind: higher, method: b, than: a,
   measure: drop}
- {text: b keeps, source: us, tier: ours, suite: switch, kind: keeps, method: b}
- {text: a keeps, source: us, tier: ours, suite: switch, kind: keeps, method: a}
- {text: stayed, source: us, tier: ours, suite: offline, kind: keeps, method: iql}
- {text: b learned, source: us, tier: ours, suite: switch, kind: keeps, method: b, than: floor}
- {text: c keeps, source: us, tier: ours, suite: switch, kind: keeps, method: b, than: c}
- {text: no rows, source: us, tier: ours, suite: nowhere, kind: higher, method: a, than: b}
"""


def test_claims_of_the_suites_of_data(arena: Arena, tmp_path: Path) -> None:
    def rows(env: str, method: str, seed: int, points: list[tuple[int, float]]) -> list[EpisodeRow]:
        return [
            EpisodeRow(
                env=env, algorithm=method, seed=seed, env_steps=steps, updates=50 + steps,
                eval_episode=0, eval_seed=0, return_=score, length=5, config_hash=env + method,
                policy=None, base=None, fingerprint="f", success=None,
            )
            for steps, score in points
        ]  # fmt: skip

    def records(task: str, env: str, *methods: str) -> list[dict[str, object]]:
        return [
            {"config_hash": env + name, "place": {"task": task, "method": name}} for name in methods
        ]

    seeds = range(5)
    learnt = [
        one
        for seed in seeds
        for one in (*rows("mine/M-v0", "iql", seed, [(0, 10.0 + seed)]),
                    *rows("mine/M-v0", "bc", seed, [(0, 5.0 + seed / 10)]),
                    *rows("mine/N-v0", "iql", seed, [(0, 3.0)]))
    ]  # fmt: skip
    named = [*records("mixed", "mine/M-v0", "iql", "bc"), *records("other", "mine/N-v0", "iql")]
    went = [
        one
        for seed in seeds
        for one in (*rows("mine/S-v0", "a", seed, [(0, 10.0), (100, 2.0 + seed), (200, 12.0)]),
                    *rows("mine/S-v0", "b", seed, [(0, 10.0), (100, 10.0), (200, 11.0 + seed)]),
                    *rows("mine/S-v0", "c", seed, [(100, 3.0), (200, 3.0)]),
                    *rows("mine/S-v0", "floor", seed, [(0, 7.0 + seed), (200, 7.0 + seed)]))
    ]  # fmt: skip
    data = {
        "offline": contests_of(episodes_table(learnt), named),
        "switch": contests_of(episodes_table(went), records("s", "mine/S-v0", *"abc", "floor")),
    }
    scores = data["switch"][0].methods["a"]
    assert scores.switch == (10.0,) * 5 and scores.drop == (-8.0, -7.0, -6.0, -5.0, -4.0)
    # Half of the way from 10 to 2 and on to 12, less 10: 6.5 and so on.
    assert scores.kept[0] == pytest.approx((10 + 2) / 4 + (2 + 12) / 4 - 10)
    (tmp_path / "claims.yaml").write_text(DATA)
    found = find(read_claims(tmp_path / "claims.yaml"), arena, data)
    assert [one.verdict for one in found] == [
        "better", "better", "better", "better", "worse", "not told yet", "not told yet",
        "not told yet", "not told yet",
    ]  # fmt: skip
    assert found[0].contests == 1 and "mixed 12 against 5" in found[0].numbers
    assert "s 0 against -6" in found[2].numbers
    # Six of the ten that were there at the switch.
    assert found[2].difference is not None
    assert found[2].difference.value == pytest.approx(0.6)
    (some,) = find([replace(found[0].claim, seeds=(3, 4))], arena, data)
    assert "mixed 14 against 5" in some.numbers and some.difference is not None
    assert some.difference.value == pytest.approx((13.5 - 5.35) / 13.5)
    assert found[6].numbers == "no more than floor at the switch: s 10 against 9"
    assert found[7].numbers == "no run made the switch"  # c has no score at it


def test_a_claim_of_data_by_a_measure_that_is_not_there(tmp_path: Path) -> None:
    text = "- {text: a, source: b, tier: c, suite: offline, kind: higher, measure: area}"
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(TrimtabError, match="measure: use score or drop"):
        read_claims(tmp_path / "claims.yaml")
