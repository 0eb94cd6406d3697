"""Films of judged episodes: their actions are played again in an environment that draws.

The judge itself is left alone, so scores are the same with a film and without. An episode is its
seed and its actions, which the contract tests hold every environment to; a film whose episodes do
not come out as they were judged is not written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from trimtab.benchmarks.artefacts.headless import choose_renderer
from trimtab.benchmarks.training.evaluate import EpisodeScore, FloatArray, Scores
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family
from trimtab.envs.registry import get_spec, list_families, make
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file, check_own, resolved, unwritable

__all__ = ["Film", "compose", "film_path", "prepare", "write_video"]

Picture = NDArray[np.uint8]

SLOWEST, FASTEST = 5.0, 60.0
"""Pictures a second that players show well; a control rate beyond them is slowed or hurried."""
WITHOUT_CLOCK = 30.0
"""Pictures a second of a task that has no clock."""

_BLOCK = 16  # codecs want widths and heights that are multiples of it
_LEAST_WIDTH = 320  # narrower pictures are enlarged, so that the words below them fit
_STRIP = 48  # height of the words
_PAPER, _INK, _SOLVED = (24, 24, 27), (235, 235, 235), (0, 200, 120)

_MARK = "made by trimtab evaluate"  # a comment in each film, by which its file is known again

_EXACT = 1e-6  # relative, of a return
_LOOSE = 0.05  # where N copies are another float32 program than one, and drift apart from it


def film_path(video: str, policy: str, env: str) -> Path | None:
    """Return where a film goes: ``video`` is a file, ``true``, or ``false`` or empty for none.

    With ``true`` it is ``<policy's folder>-<env>.mp4`` in the current folder. No file of every
    system may have a colon in its name, as ids of other people's tasks do.

    Raises:
        TrimtabError: if it is anything else.
    """
    if video in ("", "false"):
        return None
    if video == "true":
        return Path(f"{resolved(policy).name}-{env.replace('/', '-').replace(':', '-')}.mp4")
    path = Path(video)
    if path.suffix.lower() != ".mp4" or path.is_dir():
        raise TrimtabError(f"video={video}: must be true, false, or a file that ends in .mp4")
    return path


def prepare(path: Path, env: str) -> None:
    """Check that a film of ``env`` can be made, and choose what draws it.

    Call it before a simulator is imported: see
    :func:`trimtab.benchmarks.artefacts.headless.choose_renderer`.

    Raises:
        TrimtabError: if the file cannot be written or is another's, ffmpeg is missing, or nothing
            can be drawn.
    """
    folder = path.absolute().parent
    if unwritable(folder) is not None:
        raise TrimtabError(f"video={path}: no file can be written in {folder}; name another")
    check_own(path, _MARK, "video")
    _ffmpeg()
    # One's own family may import MuJoCo as soon as it is listed, so that what draws comes first.
    failed: TrimtabError | None = None
    try:
        choose_renderer()
    except TrimtabError as error:
        failed = error
    family = _family(env)
    if failed is not None and family is not None and "mujoco" in family.packages:
        raise failed


def _family(env: str) -> Family | None:
    families = {family.name: family for family in list_families()}
    return families.get(env.split("/", 1)[0])


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise TrimtabError(
            f"video needs ffmpeg: pip install 'trimtab[video]' ({str(error).splitlines()[0]})"
        ) from error
    return imageio_ffmpeg


class Film:
    """The first episodes of an evaluation, to be shown after it.

    Give :meth:`watch` to :meth:`trimtab.benchmarks.training.evaluate.Evaluator.judge`, then call
    :meth:`write`.

    Args:
        env: task id.
        episodes: how many of the first episodes are shown.
        options: what the task is made with.

    Raises:
        TrimtabError: if ``episodes`` is less than 1 or the task cannot be drawn.
    """

    def __init__(
        self, env: str, *, episodes: int, options: Mapping[str, Any] | None = None
    ) -> None:
        if episodes < 1:
            raise TrimtabError(f"video: episodes must be at least 1, got {episodes}")
        self.id, self.episodes = env, episodes
        self.rate = get_spec(env, **(options or {})).control_rate or WITHOUT_CLOCK
        self.pictures_per_second = min(FASTEST, max(SLOWEST, self.rate))
        self._chunks: dict[int, list[FloatArray]] = {}
        self._size: tuple[int, ...] = ()  # of the first picture
        family = _family(env)
        batched = family is not None and family.probe is not None
        self._tolerance = _LOOSE if batched else _EXACT
        self._env = make(env, render=True, **(options or {}))
        try:
            self._env.reset(seed=0)
            self._draw()
        except BaseException:
            self.close()
            raise

    def watch(self, episode: int, chunk: FloatArray) -> None:
        """Keep the ``chunk`` [act_steps, A] that judged episode number ``episode`` plays next."""
        if episode < self.episodes:
            self._chunks.setdefault(episode, []).append(np.array(chunk, np.float32))

    def write(
        self, path: Path, scores: Scores, tell: Callable[[float, str], None] = lambda *_: None
    ) -> int:
        """Play the kept episodes again, write the film, and return how many pictures it has.

        Args:
            path: the file; it is replaced only when the new one is whole.
            scores: what the judge found.
            tell: told the share that is done and a few words.

        Raises:
            TrimtabError: if an episode does not come out as it was judged, or the film cannot be
                written.
        """
        shown = [score for score in scores.episodes if score.eval_episode in self._chunks]
        frames = sum(score.length for score in shown)
        done = 0

        def pictures() -> Iterator[Picture]:
            nonlocal done
            for score in shown:
                for picture in self._play(score):
                    tell(min(1.0, done / frames), f"episode {score.eval_episode}")
                    done += 1
                    yield picture

        return write_video(path, pictures(), self.pictures_per_second)

    def _play(self, score: EpisodeScore) -> Iterator[Picture]:
        """Yield the pictures of an episode: its start, each step, and the end for a second."""
        env, key = self._env, self._env.success_key
        env.reset(seed=score.eval_seed)
        total, step, success, ended = 0.0, 0, False, False
        last = self._picture(score, step, total, success)
        yield last
        for chunk in self._chunks[score.eval_episode]:
            part = 0.0
            for action in chunk:
                _, reward, terminated, truncated, info = env.step(action)
                part += reward
                step += 1
                success = success or (key is not None and bool(info[key]))
                ended = terminated or truncated
                last = self._picture(score, step, total + part, success)
                yield last
                if ended:
                    break
            total += part
        # The judge adds up in this order too. Batched simulators may differ in their last digits.
        same = math.isclose(total, score.return_, rel_tol=self._tolerance, abs_tol=1e-9)
        if not (same and ended and step == score.length and success == bool(score.success)):
            raise TrimtabError(
                f"video: episode {score.eval_episode} of {self.id} was judged at return "
                f"{score.return_:.6g} after {score.length} steps and came out at {total:.6g} after "
                f"{step} when played again; no film was written, the scores stand"
            )
        yield from itertools.repeat(last, round(self.pictures_per_second))

    def _picture(self, score: EpisodeScore, step: int, total: float, success: bool) -> Picture:
        words = (
            f"episode {score.eval_episode}   seed {score.eval_seed}   "
            f"step {step}/{self._env.horizon}   {step / self.rate:.2f} s",
            f"return {total:.4g}" + ("   success" if success else ""),
        )
        return compose(self._draw(), words, solved=success)

    def _draw(self) -> Picture:
        try:
            with quiet():
                picture: Picture = self._env.render()
            self._size = self._size or picture.shape
            if picture.shape != self._size:
                sizes = " after ".join(f"{h}x{w}" for h, w, _ in (picture.shape, self._size))
                raise TrimtabError(
                    f"render() returned a picture of {sizes} pixels; return one size, or evaluate "
                    "without video"
                )
            return picture
        except TrimtabError as error:
            raise TrimtabError(f"video: {self.id}: {error}") from error

    def close(self) -> None:
        """Close the environment that draws."""
        self._env.close()


def compose(picture: Picture, words: tuple[str, str], *, solved: bool) -> Picture:
    """Return ``picture`` [H, W, 3] over a strip of words.

    Width and height are padded to multiples of 16; small pictures are enlarged by a whole factor.

    Args:
        picture: what the simulator drew.
        words: two lines of text.
        solved: whether the second line is written in green.
    """
    factor = max(1, -(-_LEAST_WIDTH // picture.shape[1]))
    picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = picture.shape[:2]
    full = [-(-size // _BLOCK) * _BLOCK for size in (height + _STRIP, width)]
    canvas = np.full((*full, 3), _PAPER, np.uint8)
    top, left = full[0] - _STRIP - height, (full[1] - width) // 2
    canvas[top : top + height, left : left + width] = picture
    image = Image.fromarray(canvas)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=13)
    below = full[0] - _STRIP
    draw.text((8, below + 3), words[0], fill=_INK, font=font)
    draw.text((8, below + 20), words[1], fill=_SOLVED if solved else _INK, font=font)
    return np.asarray(image)


def write_video(path: Path, pictures: Iterator[Picture], rate: float) -> int:
    """Write pictures [H, W, 3], all of one size, as H.264, and return how many there were.

    Args:
        path: the file; it is replaced only when the new one is whole.
        pictures: at least one.
        rate: pictures a second.

    Raises:
        TrimtabError: if ffmpeg is missing or fails, or the file cannot be written.
    """
    library = _ffmpeg()
    first = next(pictures)
    height, width = first.shape[:2]
    # ffmpeg takes what stands before a colon of a relative path for a protocol.
    with atomic_file(path.absolute()) as beside:
        writer = library.write_frames(
            str(beside), (width, height), fps=rate, codec="libx264", quality=7,
            macro_block_size=_BLOCK, ffmpeg_log_level="error",
            output_params=["-metadata", f"comment={_MARK}", "-f", "mp4"],
        )  # fmt: skip
        count = 0
        try:
            writer.send(None)
            for picture in itertools.chain([first], pictures):
                writer.send(np.ascontiguousarray(picture))
                count += 1
        except OSError as error:  # a broken pipe: ffmpeg has ended
            raise TrimtabError(f"{path}: ffmpeg failed; is the disk full?") from error
        finally:
            writer.close()
        try:
            written, _ = library.count_frames_and_secs(str(beside))
        except RuntimeError as error:
            raise TrimtabError(f"{path}: ffmpeg wrote no video; is the disk full?") from error
        if written != count:
            raise TrimtabError(f"{path}: ffmpeg wrote {written} of {count} pictures")
    return count
