"""Compare Trimtab with peers' own code, each peer in an environment of its own.

Run it as ``python peers.py [only=minari,lerobot] [out=<folder>] [environments=<folder>]
[corl=<checkout>] [fql=<checkout>] ...``. What Trimtab writes and computes is put into plain files;
the peer answers them in a virtual environment that is made for it, with versions that are named
here; every answer is compared with ours, and becomes a row. ``out`` gets ``rows.json`` (by itself
``benchmarks/results/peers``, with ``peers.md``, a table of them); with ``only`` the rows of the
other peers stay. ``environments`` is where environments are kept, to be used again.

CORL and the codes of papers are no packages: ``corl``, ``fql``, ``qc``, ``nft``, ``dppo``,
``reinflow``, ``fpo``, ``reppo``, ``flash_sac`` and ``simba_v2`` name checkouts of them, and without
one its rows are left out. The exit code is 1 where a check does not hold, and 2 for a wrong word.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peer_checks import (
    corl,
    data,
    dppo,
    edac,
    flash_sac,
    flow_q,
    fpo,
    learners,
    nft,
    numbers,
    reinflow,
    reppo,
    simba_v2,
)
from peer_checks.check import Check, Peer, compared
from peer_sides.exchange import arrays_of

from trimtab.files import atomic_write_text

logger = logging.getLogger("peers")

HERE = Path(__file__).resolve().parent
ROOT, SIDES = HERE.parents[2], HERE / "peer_sides"
PEERS: tuple[Peer, ...] = (
    *data.PEERS,
    *numbers.PEERS,
    *learners.PEERS,
    *corl.PEERS,
    *flow_q.PEERS,
    *nft.PEERS,
    *dppo.PEERS,
    *reinflow.PEERS,
    *edac.PEERS,
    *fpo.PEERS,
    *reppo.PEERS,
    *flash_sac.PEERS,
    *simba_v2.PEERS,
)
WORDS = {
    "only": ",".join(peer.name for peer in PEERS),
    "out": "benchmarks/results/peers",
    "environments": "~/.cache/trimtab/peers",
    "corl": "",
    "fql": "",
    "qc": "",
    "nft": "",
    "dppo": "",
    "reinflow": "",
    "fpo": "",
    "reppo": "",
    "flash_sac": "",
    "simba_v2": "",
}
PATHS = ("PYTHONPATH", "PYTHONHOME")  # through which packages of ours would reach a peer
TORCH = "torch==2.13.0"  # anything else would bring gigabytes of CUDA


class NotInstalledError(Exception):
    """A peer's packages cannot be installed here; the message says why."""


def environment_of(peer: Peer, folder: Path) -> Path:
    """Return the Python of a peer's environment, which is made unless it is there.

    Raises:
        NotInstalledError: if the packages cannot be installed.
    """
    wanted = json.dumps([peer.requirements, peer.bare, sys.version_info[:2]])
    place = folder / f"{peer.package}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    python, whole = place / "bin" / "python", place / "complete"
    if not whole.is_file():
        logger.info("%s: making its environment", peer.name)
        venv.create(place, clear=True, with_pip=True, symlinks=True)
        constraints = place / "constraints.txt"
        constraints.write_text(f"{TORCH}\n", encoding="utf-8")
        install(peer, python, [*peer.requirements, "--constraint", str(constraints)])
        if peer.bare:
            install(peer, python, ["--no-deps", *peer.bare])
        whole.write_text(wanted, encoding="utf-8")
    return python


def install(peer: Peer, python: Path, words: Sequence[str]) -> None:
    """Install packages.

    Raises:
        NotInstalledError: with the last thing that pip said.
    """
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *words], capture_output=True, text=True
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = said[-1].removeprefix("ERROR: ") if said else f"pip ended with {done.returncode}"
        raise NotInstalledError(f"does not install: {reason[:200]}")


def ask(python: Path, side: Path, folder: Path, *, hidden: Sequence[str]) -> None:
    """Let a peer answer the question in ``folder``, without the variables ``hidden``.

    Raises:
        NotInstalledError: if its script cannot run: a package that was installed is not importable.
    """
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, side, folder], env=kept | settings, capture_output=True, text=True
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise NotInstalledError(f"does not run: {said[0][:200]}")


def rows_of(
    peer: Peer, checks: Sequence[Check], folder: Path, settings: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the rows of the checks, from what the peer answered in ``folder``."""
    versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    version = peer.version(versions, settings)
    rows = []
    for check in checks:
        part = folder / check.part
        told = json.loads((part / "theirs.json").read_text(encoding="utf-8"))
        answers = arrays_of(part / "theirs.npz") | told["texts"]
        row = compared(check, answers, told["error"])
        rows.append({"peer": peer.name, "version": version, **row})
    return rows


def left_out(peer: Peer, note: str) -> dict[str, Any]:
    """Return the row of a peer that was not compared: whether it holds is not known."""
    return {
        "peer": peer.name, "version": None, "part": "", "check": "", "what": "", "numbers": 0,
        "ours": None, "theirs": None, "difference": None, "tolerance": None, "holds": None,
        "deviation": "", "note": note,
    }  # fmt: skip


def comparison(peer: Peer, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Compare with one peer in its own environment, and return the rows."""
    if peer.needs and not settings[peer.needs]:
        return [left_out(peer, f"not compared: give {peer.needs}=<folder of a checkout>")]
    environments = Path(settings["environments"]).expanduser()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            python = Path(sys.executable) if peer.here else environment_of(peer, environments)
            logger.info("%s: computing our side", peer.name)
            checks = peer.ask(folder, settings)
            logger.info("%s: letting it answer", peer.name)
            ask(python, SIDES / peer.side, folder, hidden=() if peer.here else PATHS)
        except NotInstalledError as error:
            return [left_out(peer, str(error))]
        return rows_of(peer, checks, folder, settings)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table, a row a line."""
    head = ("peer", "part", "check", "numbers", "difference", "tolerance", "holds", "note")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        yes = "differs as listed" if row["deviation"] else "yes"
        holds = {True: yes, False: "**no**", None: "not compared"}[row["holds"]]
        cells = [
            f"{row['peer']} {row['version'] or ''}".strip(), row["part"], row["check"],
            str(row["numbers"]) if row["numbers"] else text_of(row["ours"]),
            number(row["difference"]), number(row["tolerance"]), holds, note_of(row),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    done = [row for row in rows if row["holds"] is not None]
    lines += ["", f"{sum(row['holds'] for row in done)} of {len(done)} checks hold."]
    return "\n".join(lines) + "\n"


def text_of(value: Any) -> str:
    """Return a text that is compared, or nothing."""
    return f"`{value}`" if isinstance(value, str) else ""


def note_of(row: Mapping[str, Any]) -> str:
    """Return what there is to say of a row: a text of the peer's, an error, or a deviation."""
    differs = isinstance(row["theirs"], str) and row["holds"] is False
    return f"the peer: {row['theirs']}" if differs else str(row["note"] or row["deviation"])


def number(value: float | None) -> str:
    """Return a number with two digits, 0 as such, and nothing for None."""
    return "" if value is None else f"{value:.2g}"


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of a command line.

    Raises:
        ValueError: naming the wrong word.
    """
    settings = dict(WORDS)
    for word in words:
        key, equals, value = word.partition("=")
        if key not in WORDS or not equals:
            raise ValueError(f"{word}: give {', '.join(f'{name}=...' for name in WORDS)}")
        settings[key] = value
    names = {peer.name.lower() for peer in PEERS}
    for name in settings["only"].lower().split(","):
        if name not in names:
            raise ValueError(f"only={name}: there are {WORDS['only']}")
    for peer in PEERS:
        path = settings[peer.needs] if peer.needs else ""
        if path and not Path(path).is_dir():
            raise ValueError(f"{peer.needs}={path}: there is no such folder")
    return settings


def main(words: Sequence[str]) -> int:
    """Compare and write; the exit code is 1 where a check does not hold, 2 on wrong input."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        settings = settings_of(words)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    wanted = settings["only"].lower().split(",")
    out = ROOT / settings["out"]
    before: list[dict[str, Any]] = []
    if (out / "rows.json").is_file():
        before = json.loads((out / "rows.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for peer in PEERS:
        if peer.name.lower() in wanted:
            rows += comparison(peer, settings)
        else:
            rows += [row for row in before if row["peer"] == peer.name]
    out.mkdir(parents=True, exist_ok=True)
    atomic_write_text(out / "rows.json", json.dumps(rows, indent=1) + "\n")
    atomic_write_text(out / "peers.md", markdown(rows))
    sys.stdout.write(markdown(rows))
    return int(any(row["holds"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
