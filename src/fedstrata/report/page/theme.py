"""Define how the report looks: two themes of colours, and the stroke and marker of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LIGHT: Mapping[str, str] = {
    "page": "#F6F7F9",
    "card": "#FFFFFF",
    "ink": "#1B2129",
    "muted": "#545E6B",
    "line": "#D5DAE0",
    "edge": "#7A8594",  # borders of controls: 3 to 1 against the card
    "soft": "#ECEFF3",
    "shade": "#C6CCD4",
    "link": "#0B57C2",
    "good": "#12703F",
    "bad": "#B3261E",
    "warn": "#8A4B00",
    "warnsoft": "#FDF3E1",
    "answer": "#EAF1FD",
    "c0": "#333A44",  # the baseline; the others by their place
    "c1": "#0050F7",
    "c2": "#D08008",
    "c3": "#176941",
    "c4": "#803AB7",
    "c5": "#409CC4",
    "c6": "#745804",
    "c7": "#D0008A",
}
"""Names of colours as the page's CSS variables have them, with their values by day."""

DARK: Mapping[str, str] = {
    "page": "#101317",
    "card": "#16191E",
    "ink": "#E6E9ED",
    "muted": "#A5AFBB",
    "line": "#323943",
    "edge": "#76818F",
    "soft": "#21262D",
    "shade": "#3E4753",
    "link": "#84B4FF",
    "good": "#5CC98D",
    "bad": "#FF8A80",
    "warn": "#F2B45A",
    "warnsoft": "#2C2416",
    "answer": "#172438",
    "c0": "#E3E7EC",
    "c1": "#5C58FF",
    "c2": "#FFD776",
    "c3": "#30D997",
    "c4": "#BE85FE",
    "c5": "#69A3C4",
    "c6": "#969400",
    "c7": "#9F6061",
}
"""The same by night. The series colours of both differ by at least 20 in CIE Lab, also for colour-blind eyes.

A test computes it.
"""

HUES = 7  # besides the baseline's
DASHES: Sequence[tuple[float, ...]] = ((), (5, 2), (1.4, 1.6), (7, 2, 1.4, 2))
MARKERS = "osD^vPX<>*"


@dataclass(frozen=True)
class Stroke:
    """Describes how one method is drawn in every picture.

    Attributes:
        colour: name in LIGHT and DARK.
        dash: lengths on and off, in widths of the line; () is solid.
        marker: matplotlib's letter.
    """

    colour: str
    dash: tuple[float, ...]
    marker: str

    @property
    def hex(self) -> str:
        """Return the colour of the light theme."""
        return LIGHT[self.colour]


def strokes(count: int, baseline: int | None = None) -> tuple[Stroke, ...]:
    """Return one stroke a method; up to 140 all differ.

    Args:
        count: methods.
        baseline: place of the one that the others are compared with; it is drawn in ink, solid.
    """
    result = []
    index = 0
    for at in range(count):
        if at == baseline:
            result.append(Stroke("c0", (), "o"))
            continue
        result.append(
            Stroke(
                f"c{index % HUES + 1}",
                DASHES[(index + index // HUES) % len(DASHES)],
                MARKERS[(index + 1) % len(MARKERS)],
            )
        )
        index += 1
    return tuple(result)


def luminance(colour: str) -> float:
    """Return the relative luminance of "#RRGGBB", in [0, 1]. Source: WCAG 2.2, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21. Source: WCAG 2.2, "contrast ratio".

    >>> round(contrast("#000000", "#FFFFFF"))
    21
    """
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
