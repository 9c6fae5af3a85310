"""Turn matplotlib's SVG into a part of the page: with the page's colours and unique ids, and drawing elements only."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from markupsafe import Markup

from fedstrata.report.page.theme import LIGHT

DRAWING = frozenset({"svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "image", "title", "desc"})
"""Elements that a picture is made of. Any other is not carried over.

A test draws every kind of picture and finds none.
"""

_COLOURS = {value.lower(): f"var(--{name})" for name, value in LIGHT.items()}
_HEX = re.compile(r"#[0-9a-fA-F]{6}\b")
_NUMBER = re.compile(r"-?\d+\.\d+")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"(font-family|font-style|font-variant|font-stretch):[^;]*;?\s*")
_FONT_SHORT = re.compile(r"font:\s*([\d.]+)px\s+[^;]*")
_CURVED = re.compile(r"[CQSTAHV]")
_SERIES = re.compile(r"series-(\d+)(-\w+)?(_\d+)?")


def inline(text: str, name: str, alt: str, labels: Mapping[int, str]) -> Markup:
    """Return the picture as an element of the page.

    Args:
        text: of :func:`fedstrata.report.page.drawing.svg_text`.
        name: unique on the page; ids inside begin with it.
        alt: description for readers who cannot see it.
        labels: names of the methods by index; they become tooltips.
    """
    root = ET.fromstring(text)  # written by ourselves a moment ago  # noqa: S314
    (drawn,) = _part(root, name, labels)
    box = root.attrib["viewBox"]
    drawn.attrib.clear()
    drawn.attrib |= {"viewBox": _rounded(box, 1), "role": "img", "aria-labelledby": f"{name}-alt", "focusable": "false"}
    setting_text = ET.Element("desc", {"id": f"{name}-alt"})
    setting_text.text = alt
    drawn.insert(0, setting_text)
    # serialised XML: text and attributes are escaped
    return Markup(ET.tostring(drawn, encoding="unicode"))  # noqa: S704


def _part(element: ET.Element, name: str, labels: Mapping[int, str], *, fine: bool = False) -> list[ET.Element]:
    """Convert an element: to nothing where it draws nothing, to its children where it is an empty group."""
    tag = _local(element.tag)
    if tag not in DRAWING:
        return []
    fine = fine or tag == "defs"
    made = ET.Element(tag, _attributes(element, name, fine=fine))
    if tag == "path" and made.get("style") == "fill:none" and "id" not in made.attrib:
        return []  # the background of the axes
    made.text = element.text if tag in ("text", "tspan") else None
    if tag == "g" and (series := _SERIES.fullmatch(element.get("id", ""))):
        made.set("class", f"s s{series[1]}")
        if int(series[1]) in labels:
            ET.SubElement(made, "title").text = labels[int(series[1])]
    for child in element:
        for part in _part(child, name, labels, fine=fine):
            made.append(part)
            part.tail = child.tail if tag == "text" else None
    if tag in ("g", "defs") and not len(made):
        return []
    return list(made) if tag == "g" and not made.attrib else [made]


def _local(tag: object) -> str:
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _attributes(element: ET.Element, name: str, *, fine: bool) -> dict[str, str]:
    attributes = {}
    for key, value in element.attrib.items():
        attribute = _local(key)
        if attribute == "id":
            if _local(element.tag) != "g":  # groups are never referred to
                attributes["id"] = f"{name}-{value}"
        elif attribute == "href":
            attributes["href"] = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif attribute in ("d", "transform", "x", "y", "width", "height"):
            if not value.startswith("rotate(-0"):
                attributes[attribute] = _rounded(value, 2 if fine or attribute == "transform" else 1)
        elif attribute == "style":
            if style := _style(value, name):
                attributes["style"] = style
        elif attribute in ("clip-path", "preserveAspectRatio"):
            attributes[attribute] = _REFERENCE.sub(rf"url(#{name}-\1)", value)
    return attributes


def _style(text: str, name: str) -> str:
    text = _HEX.sub(lambda hit: _COLOURS.get(hit[0].lower(), hit[0]), text)
    text = _REFERENCE.sub(rf"url(#{name}-\1)", text)
    text = _FONT_SHORT.sub(r"font-size: \1px", text)
    text = _FONT.sub("", text)
    return text.replace("; ", ";").replace(": ", ":").strip("; ")


def _rounded(text: str, digits: int) -> str:
    """Round numbers to the digits that a screen can show; a path of lines alone drops repeated commands."""
    if text.startswith("M") and not _CURVED.search(text):
        text = text.replace(" L ", " ").replace("\nL ", " ")
    return " ".join(
        _NUMBER.sub(
            lambda hit: f"{round(float(hit[0]), digits) + 0.0:.{digits}f}".rstrip("0").rstrip("."), text
        ).split()
    )
