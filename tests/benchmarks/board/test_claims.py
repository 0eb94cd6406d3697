"""Claims against rows whose answer is known: one that holds, one that does not, each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.benchmarks.board.arena.claims import find, read_claims, steps_to, to_markdown
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest, CurvePoint
from trimtab.benchmarks.board.stats import Interval
from trimtab.types import TrimtabError


def row(method: str, finals: tuple[float, ...], curve: dict[int, float], control: str) -> ArenaRow:
    score = Interval(sum(finals) / len(finals), 0.0, 1.0)
    return ArenaRow(
        task="x", base="flow", method=method, variant=None, algorithm=method, config_hash=method,
        seeds=len(finals), score=score, return_=0.0, area=score.value, regret=0.0,
        worst_drop=0.0, gain=None, control=control, control_gain=None, episodes=0.0, seconds=0.0,
        trained_parameters=0, base_distance=None, torch_ms=None, onnx_ms=None,
        demonstrations=False, finals=finals, areas=tuple(1 - one for one in finals),
        curve=tuple(
            CurvePoint(step, 0.0, 0.0, Interval(value, value, value), 0.0)
            for step, value in curve.items()
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def arena() -> Arena:
    fast = row("fast", (0.9, 0.8, 0.9, 0.85, 0.95), {100: 0.9, 1000: 0.88}, "zero")
    slow = row("slow", (0.5, 0.6, 0.5, 0.55, 0.45), {500: 0.4, 1000: 0.7}, "zero")
    zero = row("zero", (0.6, 0.5, 0.55, 0.6, 0.5), {0: 0.55}, "")
    frozen = Interval(0.4, 0.3, 0.5)
    return Arena((Contest("x", "gym/X-v0", "flow", "success", frozen, (fast, slow, zero)),), (), ())


CLAIMS = """
- {text: faster is higher, source: us, tier: ours, kind: higher, method: fast, than: slow}
- {text: slower is higher, source: us, tier: ours, kind: higher, method: slow, than: fast}
- {text: slow beats zero, source: us, tier: ours, kind: control, method: slow}
- {text: fast is sooner, source: us, tier: ours, kind: sooner, method: fast, than: slow, factor: 5}
- {text: slow is sooner, source: us, tier: ours, kind: sooner, method: slow, than: fast, factor: 5}
- {text: elsewhere, source: us, tier: ours, kind: higher, method: fast, than: slow, tasks: [y]}
- {text: by area, source: us, tier: ours, kind: higher, method: slow, than: fast, measure: area}
- {text: later, source: us, tier: ours, kind: missing, why: not there}
"""


def test_each_kind_of_claim(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    findings = find(read_claims(tmp_path / "claims.yaml"), arena)
    assert [one.verdict for one in findings] == [
        "holds", "does not hold", "cannot be told", "holds", "does not hold", "cannot be told",
        "holds", "cannot be told",
    ]  # fmt: skip
    assert findings[0].numbers.startswith("P(better) 1.00 [") and findings[5].contests == 0
    text = to_markdown(findings)
    assert text.count("**holds**") == 3 and "not there" in text


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
    ],
)
def test_a_wrong_claim_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(TrimtabError, match=message) as caught:
        read_claims(tmp_path / "claims.yaml")
    assert "\n" not in str(caught.value)
    with pytest.raises(TrimtabError, match="cannot be read"):
        read_claims(tmp_path / "none.yaml")
