"""Gives the package its long description: README, whose links to files would lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

# A paragraph or table with a picture.
_PICTURE = re.compile(
    r"^(?:[^\n]+\n)*[^\n]*!\[[^\]]*\]\((?!\w+:)[^\n]*\n(?:[^\n]+\n)*\n?", re.MULTILINE
)
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)]*)\)")
_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def _in_words(link: re.Match[str]) -> str:
    """Return a link's text, and the file that it names beside it if that is another."""
    text, target = link.groups()
    if target.startswith("#"):
        return text
    return f"`{target}`" if text == target else f"{text} (`{target}`)"


def long_description() -> str:
    """Return README without links into the repository; those to elsewhere stay.

    Every file that it names is part of the source distribution.
    """
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    parts = _BLOCK.split(_PICTURE.sub("", readme))
    parts[::2] = [_LINK.sub(_in_words, prose) for prose in parts[::2]]
    return "".join(parts)


setup(long_description=long_description(), long_description_content_type="text/markdown")
