"""Films of judged episodes, read back picture by picture; and finding what can draw them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.benchmarks.artefacts import headless, video
from trimtab.benchmarks.artefacts.headless import Trial, choose_renderer, try_renderers
from trimtab.benchmarks.cli.main import main, run
from trimtab.benchmarks.training.evaluate import Evaluator, Scores
from trimtab.envs.registry import list_tasks, make
from trimtab.errors import TrimtabError
from trimtab.policies.agent import PolicyInputs

pytestmark = pytest.mark.slow

MAZE = "robotics/PointMaze-TwoRoutes-v0"
CHEETAH = "gym/HalfCheetah-v5"  # has a vector environment of its own
HORIZON = 10
ACT_STEPS = 4  # the last chunk of an episode is cut
Pictures = NDArray[np.uint8]


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> str:
    """What draws on this machine, chosen as the command chooses it and forgotten afterwards."""
    monkeypatch.setenv(headless.VARIABLE, "")
    return choose_renderer()


def read(path: Path) -> tuple[dict[str, Any], Pictures]:
    reader = imageio_ffmpeg.read_frames(str(path))
    facts = next(reader)
    width, height = facts["size"]
    pictures = [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader]
    return facts, np.array(pictures)


def judge(env: str, film: video.Film | None) -> Scores:
    """Judge a policy that acts at random, by its noise alone."""
    evaluator = Evaluator(
        env, episodes=4, seed=5, act_steps=ACT_STEPS, options={"horizon": HORIZON}
    )
    shape = (ACT_STEPS, *evaluator.envs.single_action_space.shape[1:])
    watch = None if film is None else film.watch
    try:
        return evaluator.judge(
            lambda obs, noise: np.tanh(noise), PolicyInputs(shape), deterministic=False, watch=watch
        )
    finally:
        evaluator.close()


def untimed(scores: Scores) -> list[tuple[object, ...]]:
    return [(e.eval_seed, e.return_, e.success, e.length) for e in scores.episodes]


@pytest.fixture
def maze_film(drawing: str) -> Any:
    film = video.Film(MAZE, episodes=2, options={"horizon": HORIZON})
    yield film
    film.close()


def test_a_film_shows_the_judged_episodes(maze_film: video.Film, tmp_path: Path) -> None:
    scores = judge(MAZE, maze_film)
    assert untimed(scores) == untimed(judge(MAZE, None))
    path = tmp_path / "maze.mp4"
    count = maze_film.write(path, scores)
    facts, pictures = read(path)
    assert [file.name for file in tmp_path.iterdir()] == ["maze.mp4"]
    assert facts["fps"] == maze_film.rate == 25.0
    assert facts["size"][0] % 16 == facts["size"][1] % 16 == 0
    per_episode = 1 + HORIZON + 25  # start, steps, and the end for a second
    assert len(pictures) == count == 2 * per_episode

    # The second episode, played by hand: the film's pictures are its pictures, in its order.
    env = make(MAZE, render=True, horizon=HORIZON)
    env.reset(seed=scores.episodes[1].eval_seed)
    by_hand = [env.render()]
    stream = np.random.Generator(np.random.Philox(6))
    for _ in range(3):
        noise = stream.standard_normal((ACT_STEPS, 2), dtype=np.float32)
        for action in np.tanh(noise)[: HORIZON - len(by_hand) + 1]:
            env.step(action)
            by_hand.append(env.render())
    env.close()
    assert len(by_hand) == 1 + HORIZON
    height, width = by_hand[0].shape[:2]
    shown = pictures[per_episode : per_episode + 1 + HORIZON, :height, :width].astype(float)
    apart = [[np.abs(a - b).mean() for b in shown] for a in by_hand]
    assert np.argmin(apart, axis=1).tolist() == list(range(1 + HORIZON))


def test_a_film_of_a_task_with_a_vector_of_its_own(drawing: str, tmp_path: Path) -> None:
    film = video.Film(CHEETAH, episodes=1, options={"horizon": HORIZON})
    scores = judge(CHEETAH, film)
    film.write(tmp_path / "cheetah.mp4", scores)  # it compares the returns itself
    film.close()
    facts, pictures = read(tmp_path / "cheetah.mp4")
    assert len(pictures) == 1 + HORIZON + 20 and facts["fps"] == 20.0
    assert all(picture[:-48].std() > 10 for picture in pictures)


def test_every_family_can_be_drawn(drawing: str) -> None:
    """In a process of its own, as some simulators choose what draws when they are imported."""
    tasks = list_tasks()
    firsts: dict[str, str] = {}
    for id in (id for id, task in tasks.items() if "mjx" not in task.tags):
        firsts.setdefault(id.split("/")[0], id)
    code = (
        "import json, sys; from trimtab.envs.registry import make\n"
        "for id in sys.argv[1:]:\n"
        "    env = make(id, render=True); env.reset(seed=0)\n"
        "    picture = env.render(); env.close()\n"
        "    print(json.dumps([id, picture.shape, str(picture.dtype), float(picture.std())]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *firsts.values()],
        env={**os.environ, headless.VARIABLE: drawing}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [row[0] for row in rows] == list(firsts.values()), done.stderr
    for id, shape, dtype, spread in rows:
        assert len(shape) == 3 and shape[2] == 3 and dtype == "uint8", id
        assert spread > 5, id


@pytest.mark.parametrize("later", [(66, 64), (32, 32)])
def test_pictures_that_change_their_size_are_no_film(
    later: tuple[int, int], maze_film: video.Film, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scores = judge(MAZE, maze_film)
    pictures = iter(
        [np.zeros((*maze_film._size[:2], 3), np.uint8), np.zeros((*later, 3), np.uint8)]
    )
    monkeypatch.setattr(maze_film._env, "render", lambda: next(pictures))
    told = "x".join(map(str, later))
    with pytest.raises(
        TrimtabError, match=rf"video: {MAZE}: render\(\) returned a picture of {told} a"
    ):
        maze_film.write(tmp_path / "maze.mp4", scores)
    assert not list(tmp_path.iterdir())


def test_other_actions_are_no_film_of_the_episode(maze_film: video.Film, tmp_path: Path) -> None:
    scores = judge(MAZE, maze_film)
    path = tmp_path / "maze.mp4"
    path.write_bytes(b"an older film")
    maze_film._chunks[1].pop()
    with pytest.raises(TrimtabError, match="episode 1 of .* no film was written"):
        maze_film.write(path, scores)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("maze.mp4", b"an older film")
    ]


@pytest.mark.parametrize("size", [(96, 96), (50, 333)])
def test_a_picture_is_padded_to_sixteen(size: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    found = video.compose(picture, ("first", "second"), solved=False)
    assert found.shape[0] % 16 == found.shape[1] % 16 == 0 and found.shape[1] >= 320
    factor = 4 if size[1] == 96 else 1
    height, width = size[0] * factor, size[1] * factor
    bottom, left = found.shape[0] - video._STRIP, (found.shape[1] - width) // 2
    shown = found[bottom - height : bottom, left : left + width]
    assert np.array_equal(shown, picture.repeat(factor, 0).repeat(factor, 1))
    solved = video.compose(picture, ("first", "second"), solved=True)
    assert not np.array_equal(solved, found)  # the words have another colour


def test_where_a_film_goes(tmp_path: Path) -> None:
    assert video.film_path("", "p", "gym/X") is video.film_path("false", "p", "gym/X") is None
    assert video.film_path("true", "a/seed0/", "gym/X-v5") == Path("seed0-gym-X-v5.mp4")
    assert video.film_path("true", "a", "gymnasium:my:X-v0") == Path("a-gymnasium-my-X-v0.mp4")
    assert video.film_path("b/c.mp4", "a", "gym/X") == Path("b/c.mp4")
    folder = tmp_path / "d.mp4"
    folder.mkdir()
    for wrong in ("yes", "film.avi", str(folder)):
        with pytest.raises(TrimtabError, match=r"must be true, false, or a file that ends in .mp4"):
            video.film_path(wrong, "p", "gym/X")
    with pytest.raises(TrimtabError, match="no file can be written in /proc/none"):
        video.prepare(Path("/proc/none/x.mp4"), MAZE)


def test_only_an_earlier_film_is_replaced(tmp_path: Path, drawing: str) -> None:
    mine, film = tmp_path / "mine.mp4", tmp_path / "film.mp4"
    mine.write_bytes(b"\0\0\0\x20ftypisom, a robot's")
    os.mkfifo(tmp_path / "pipe.mp4")
    for other in (mine, tmp_path / "pipe.mp4"):
        with pytest.raises(TrimtabError, match="that this command has not made; name another"):
            video.prepare(other, MAZE)
    assert mine.read_bytes().endswith(b"a robot's")
    for _ in range(2):
        video.prepare(film, MAZE)
        video.write_video(film, iter([np.zeros((64, 64, 3), np.uint8)] * 500), 25.0)


@pytest.mark.parametrize("name", ["gymnasium:my:X-v0.mp4", "-y.mp4", "file:x.mp4"])
def test_a_name_is_no_word_of_ffmpeg(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert video.write_video(Path(name), iter([np.zeros((32, 32, 3), np.uint8)] * 3), 25.0) == 3
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_missing_ffmpeg_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(TrimtabError, match=r"pip install 'trimtab\[video\]'"):
        video.prepare(tmp_path / "x.mp4", MAZE)


def test_renderers_are_tried_and_their_reasons_told(
    monkeypatch: pytest.MonkeyPatch, drawing: str
) -> None:
    wrong, right, slow = (
        *try_renderers(["paintbrush", drawing]),
        *try_renderers([drawing], timeout=0.001),
    )
    assert right == Trial(drawing, "") and right.works
    assert not wrong.works and "paintbrush" in wrong.reason
    assert not slow.works and "no picture within" in slow.reason
    monkeypatch.setenv(headless.VARIABLE, "paintbrush")
    assert headless.candidates() == ("paintbrush",)
    with pytest.raises(TrimtabError, match="MUJOCO_GL is set.*paintbrush.*unset it"):
        choose_renderer()
    monkeypatch.delenv(headless.VARIABLE)
    monkeypatch.setenv("DISPLAY", ":0")
    assert headless.candidates() == ("egl", "osmesa", "glfw")


def test_the_command_gives_the_same_scores_and_a_film(
    tiny: Any,
    drawing: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"policy={tiny.base}", "episodes=3", "seed=2", "format=json"]
    with pytest.raises(TrimtabError, match="add video=… for a film"):
        run(["evaluate", *words, "video_episodes=1"])
    assert run(["evaluate", *words]) == 0
    without = capfd.readouterr().out
    assert run(["evaluate", *words, "video=true", "video_episodes=1"]) == 0
    filmed = capfd.readouterr()
    assert filmed.out == without
    name = f"{tiny.base.name}-{MAZE.replace('/', '-')}.mp4"
    assert name in filmed.err
    _, pictures = read(tmp_path / name)
    length = json.loads(filmed.out)["episodes"][0]["length"]
    assert len(pictures) == 1 + length + 25


def test_a_machine_that_cannot_draw_is_told_before_judging(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(headless.VARIABLE, "paintbrush")
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", f"policy={tiny.base}", "episodes=3", "video=x.mp4"])
    shown = capfd.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1 and "paintbrush" in shown.err
    assert not list(tmp_path.iterdir())
