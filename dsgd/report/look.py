"""Describe the look of figures: their sizes and formats, their axes, and the position of their captions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """The size of figures. inches: width. panel_inches: height of a panel. points: size of letters.

    fixed: the figure has this width; otherwise at most this width, less with few panels."""

    inches: float
    panel_inches: float
    points: float
    fixed: bool


WIDTHS = {
    "single": Page(3.4, 2.3, 8, True),  # one column of a paper
    "double": Page(7.0, 2.3, 8, True),  # the whole width of its page
    "wide": Page(13.4, 3.5, 10, False),  # screens and slides
}
SCREEN = Page(4.8, 3.0, 9, True)  # a figure of a page for a browser, whose width it follows
FORMATS = ("png", "svg", "pdf")
AXES = ("x", "y")


@dataclass(frozen=True)
class Look:
    """Describe the output of figures. width: one of WIDTHS. formats: some of FORMATS. log: the logarithmic ones of
    AXES; None: axes whose values span a decade. captions: False writes title and notes into a file `.txt` instead."""

    width: str = "wide"
    formats: Sequence[str] = FORMATS
    log: Collection[str] | None = None
    captions: bool = True


WIDE = Look()
