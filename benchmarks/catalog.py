"""What result tables and ``trimtab list`` say about a method: read from its own docstring."""

from __future__ import annotations

import importlib
import re

from trimtab.types import TrimtabError

_PAPER = re.compile(r'"([^"]+)"\s*\(arXiv\s+(\d{4}\.\d{4,5})')


def describe_algorithm(target: str) -> tuple[str, str]:
    """Return a method's one line and its paper, ``title (arXiv number)``.

    Args:
        target: import path of the method's class.

    Raises:
        TrimtabError: if the module's docstring cites no paper as ``"Title" (arXiv NNNN.NNNNN)``.
    """
    module = importlib.import_module(target.rpartition(".")[0])
    text = " ".join((module.__doc__ or "").split())
    paper = _PAPER.search(text)
    if paper is None:
        raise TrimtabError(
            f'{module.__name__}: its docstring cites no paper as "Title" (arXiv NNNN.NNNNN)'
        )
    summary = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return summary, f"{paper[1].rstrip(',')} (arXiv {paper[2]})"
