"""Curves, pictures as files, and what is inside of them."""

import hashlib
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedstrata.diagnostics.panel import Panel
from fedstrata.report.page import drawing, write_pictures
from fedstrata.report.page.content import pictures
from fedstrata.report.page.context import PageContext
from fedstrata.report.page.curve_data import curve
from fedstrata.report.page.drawing import svg_text
from fedstrata.report.page.panels import PLAIN, panel_grid, panel_picture
from fedstrata.report.page.svg import DRAWING, inline
from fedstrata.runs.result import Result
from helpers import handmade, page_cases
from helpers.tiers import tiered


def context(name):
    comparison, found, panels = page_cases.case(name)
    return PageContext(comparison, found), panels or ()


# ---- curves


def run(scores, **more):
    return Result(
        {},
        [
            {"round": k, "accuracy": s, "bytes_up": 10, "bytes_down": 20, "flops": 5.0, "seconds": 0.5} | more
            for k, s in enumerate(scores)
        ],
    )


def test_a_curve_is_mean_and_deviation_over_seeds():
    found = curve([run([0.1, 0.2]), run([0.3, 0.6])], "accuracy", "bytes")
    assert found.rounds == [1, 2]
    assert found.x == [30, 60]
    assert found.y == pytest.approx([0.2, 0.4])
    assert found.std == pytest.approx([np.std([0.1, 0.3], ddof=1), np.std([0.2, 0.6], ddof=1)])


def test_a_curve_has_the_rounds_that_all_seeds_reached_and_counts_unevaluated_ones():
    found = curve([run([None, 0.2, None, 0.4]), run([None, 0.4])], "accuracy", "seconds")
    assert (found.rounds, found.x, found.longest) == ([2], [1.0], 4)
    assert curve([run([0.5])], "accuracy", "rounds").std is None
    assert curve([run([None])], "accuracy", "rounds") is None
    assert curve([], "accuracy", "rounds") is None


def test_errors_of_clients_are_turned_round():
    found = curve([run([0.1], personal=-2.5)], "personal", "rounds", sign=-1.0)
    assert found.y == [2.5]


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    long = curve([run([k / 1000 for k in range(1000)])], "accuracy", "rounds").thin(50)
    assert len(long.y) == len(long.x) == len(long.rounds) == 50
    assert (long.rounds[0], long.rounds[-1]) == (1, 1000)


# ---- inside of a page


@pytest.mark.parametrize("name", tiered(["five", "panels", "hostile", "no_clients"], ["panels"]))
def test_a_picture_is_drawing_alone_in_the_colours_of_the_page(name):
    one, panels = context(name)
    for picture in pictures(one, panels):
        root = ET.fromstring(inline(svg_text(picture), picture.name, picture.alt, dict(enumerate(one.names))))
        assert {e.tag for e in root.iter()} <= DRAWING
        assert all(e.get("id", picture.name).startswith(picture.name) for e in root.iter())
        styles = " ".join(e.get("style", "") for e in root.iter())
        assert not re.findall(r"(?:fill|stroke):#[0-9a-fA-F]{6}", styles), "each colour has a name"
        assert "var(--" in styles
        assert root.find("desc").text == picture.alt
        assert re.search(r"\d", picture.alt), picture.alt
        assert picture.alt.endswith(".")


@pytest.mark.full
def test_text_of_a_picture_is_text():
    one, _ = context("hostile")
    all_text = []
    for picture in pictures(one, ()):
        root = ET.fromstring(inline(svg_text(picture), picture.name, picture.alt, {}))
        all_text += ["".join(e.itertext()) for e in root.iter("text")]
    assert any("<img src=x" in text for text in all_text)
    assert any("$\\frac{1}{0}$" in text for text in all_text), "names are no formulas"
    assert any("_hidden" in text for text in all_text), "an underscore hides nothing"


def test_points_are_drawn_where_they_belong():
    """A line through two known values, read back from the path in the picture."""
    comparison = handmade.comparison(("fedavg",), (0,), rounds=3, noise=0.0)
    found = PageContext(comparison, page_cases.findings(comparison))
    picture = next(p for p in pictures(found, ()) if p.name == "loss-by-rounds")
    root = ET.fromstring(inline(svg_text(picture), picture.name, picture.alt, {}))
    line = next(g for g in root.iter("g") if g.get("class") == "s s0")
    points = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.find("path").get("d"))]
    losses = [row["loss"] for row in comparison.runs("fedavg")[0].rounds]
    assert len(points) == 3
    across, up = np.diff([x for x, _ in points]), np.diff([y for _, y in points])
    assert across[0] == pytest.approx(across[1], abs=0.2), "rounds are evenly spaced"
    assert up[0] / up[1] == pytest.approx((losses[1] - losses[0]) / (losses[2] - losses[1]), rel=0.02)


def test_names_of_pictures_are_unique_and_safe_as_files():
    for name in ("five", "panels", "hostile", "regression"):
        one, panels = context(name)
        found = [picture.name for picture in pictures(one, panels)]
        assert len(found) == len(set(found))
        assert all(re.fullmatch(r"[a-z0-9-]+", n) for n in found)


# ---- files


@pytest.mark.full
def test_every_picture_is_a_png_and_an_svg_with_a_legend_and_equal_bytes(tmp_path):
    comparison, found, _ = page_cases.case("panels")
    files = write_pictures(comparison, found, tmp_path / "a", page_cases.PANELS)
    again = write_pictures(comparison, found, tmp_path / "b", page_cases.PANELS)
    assert [hashlib.sha256(f.read_bytes()).digest() for f in files] == [
        hashlib.sha256(f.read_bytes()).digest() for f in again
    ]
    assert {f.suffix for f in files} == {".png", ".svg"}
    assert len(files) == 2 * len(pictures(PageContext(comparison, found), page_cases.PANELS))
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == sorted(f.name for f in files)
    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert min(image.size) > 200
                assert not {"Date", "Software", "Creation Time"} & set(image.info)
        else:
            text = file.read_text(encoding="utf-8")
            assert "<script" not in text
            assert "<dc:date>" not in text
    svg = (tmp_path / "a" / "accuracy-by-rounds.svg").read_text(encoding="utf-8")
    assert "fedavgm" in svg


def test_drawing_leaves_no_settings_behind():
    import sys  # noqa: PLC0415

    import matplotlib as mpl  # noqa: PLC0415

    def settings():
        return {
            name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"
        }  # asking for that one chooses a window system

    before = settings()
    one, _ = context("one")
    svg_text(pictures(one, ())[0])
    assert settings() == before
    assert "matplotlib.pyplot" not in sys.modules


# ---- panels


def test_any_kind_of_panel_is_drawn_with_its_table():
    one, _ = context("panels")
    for index, panel in enumerate(page_cases.PANELS):
        picture = panel_picture(panel, index, one)
        assert (picture is None) == (panel.kind == "table" or panel.title == "Nothing")
        table = panel_grid(panel)
        assert all(len(row) == len(table.heads) for row in table.rows)
    table = panel_grid(page_cases.PANELS[0])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["1", "1 ± 0.1", "2"],
        ["2", "2 ± 0.2", "1"],
        ["3", "-", "0.5"],
    ]


def test_a_measures_method_has_the_stroke_of_that_method():
    one, _ = context("panels")
    lines = ET.fromstring(
        inline(svg_text(panel_picture(page_cases.PANELS[0], 1, one)), "p", "a 1.", dict(enumerate(one.names)))
    )
    assert {g.get("class") for g in lines.iter("g")} >= {"s s0", "s s1"}
    layers = ET.fromstring(
        inline(svg_text(panel_picture(page_cases.PANELS[1], 2, one)), "p", "a 1.", dict(enumerate(one.names)))
    )
    assert not {g.get("class") for g in layers.iter("g")} & {"s s0", "s s1"}
    assert {"conv1", "head"} <= {"".join(t.itertext()) for t in layers.iter("text")}, "its own legend"


def test_a_spread_that_is_rounding_is_left_out():
    panel = Panel("P", "T.", "lines", [1, 2, 3], {"a": [0.7, 0.7, 0.0]}, {"a": [1.1e-16, 1e-6, 1e-16]})
    assert [row[1].text for row in panel_grid(panel).rows] == ["0.7", "0.7 ± 1e-06", "0 ± 1e-16"]


def test_bars_start_at_zero_and_have_their_numbers():
    one, _ = context("panels")
    for values, start in (([0.0, 0.0], 0.0), ([2.5, 4.0], 0.0), ([-1.0, 2.0], None)):
        figure = Figure()
        panel_picture(Panel("Bars", "T.", "bars", ["x", "y"], {"a": values}), 1, one).draw(figure)
        (axes,) = figure.axes
        assert axes.get_xlim()[0] == 0 if start == 0 else axes.get_xlim()[0] < -1
        assert [t.get_text() for t in axes.texts] == [f"{v:g}" for v in values]


def test_rounds_after_an_average_have_whole_ticks():
    one, _ = context("panels")
    figure = Figure()
    panel_picture(
        Panel("P", "T.", "lines", [2, 3, 4], {"a": [1.0, 2.0, 1.0]}, x_name="round after the average"), 1, one
    ).draw(figure)
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


def test_very_long_and_odd_panels_are_drawn():
    one, _ = context("panels")
    long = Panel("Long", "T.", "lines", list(range(5000)), {"fedavg": list(np.sin(np.arange(5000) / 100))})
    assert len(svg_text(panel_picture(long, 1, one))) < 60_000
    odd = Panel("Odd", "T.", "heat", [0.5], {"a": [float("nan")], "b": [float("inf")], "c": [1.0]})
    assert "1" in panel_picture(odd, 1, one).alt
    assert panel_picture(Panel("None", "T.", "bars", [], {"a": []}), 1, one) is None


def test_a_loss_that_diverged_does_not_press_the_others_flat():
    comparison = handmade.comparison(("fedavg", "scaffold"), (0, 1, 2), rounds=12)
    for (label, _), run in comparison.results.items():
        for row in run.rounds[-5:] if label == "scaffold" else ():
            row["loss"] = 5e30
    drawn = {p.name: p for p in pictures(PageContext(comparison, page_cases.findings(comparison)), ())}[
        "loss-by-rounds"
    ]
    assert "are outside the picture" in drawn.note
    figure = Figure()
    drawn.draw(figure)
    bottom, top = figure.axes[0].get_ylim()
    usual = max(
        row["loss"] for (label, _), run in comparison.results.items() for row in run.rounds if label == "fedavg"
    )
    assert bottom == 0
    assert usual <= top < 100


def test_a_long_title_is_broken_into_lines_and_stays_inside(tmp_path):
    """Where it ran over the edge, there would be ink in the first columns of pixels."""
    title = "Similarity of outputs to the final ones: fedpart-cycles-2-cifar10-norm-raw-s0-221d9e15, pooled"
    panel = Panel(title, "", "bars", ["first", "second"], {"one": [1.0, 2.0]})
    png, svg = drawing.save(panel_picture(panel, 0, PLAIN, name="long"), tmp_path, (), ())
    ink = np.array(Image.open(png).convert("L")) < 160
    assert not ink[:, :6].any()
    assert not ink[:, -6:].any()
    assert title in svg.read_text(), "whole in its own title"
