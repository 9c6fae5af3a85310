"""The page as text: names, ids, sizes, contrast, and comparisons of odd kinds."""

import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fedstrata.report.page.text import names, plain, short
from fedstrata.report.page.theme import DARK, HUES, LIGHT, contrast, strokes
from helpers import page_cases

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Tree(HTMLParser):
    """Elements with their attributes, in order; wrong nesting is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs), "an attribute twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.fixture(scope="module")
def tree(page):
    made = {}
    return lambda name: made.setdefault(name, Tree(page(name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", list(page_cases.CASES))
def test_every_kind_of_comparison_gives_a_sound_page(tree, name):
    found = tree(name)
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.found:
        assert tag not in {"img", "iframe", "object", "embed", "foreignobject", "form", "base"}
        assert not [a for a in attributes if a.startswith("on")]
        for a in ("href", "src", "xlink:href"):
            assert attributes.get(a, "#").startswith(("#", "data:")), (tag, attributes)
        for reference in re.findall(r"url\(#([^)]+)\)", " ".join(v or "" for v in attributes.values())):
            assert reference in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids
    assert [tag for tag, _ in found.found].count("script") == 2
    assert "h1" in [tag for tag, _ in found.found]
    text = "".join(data for where, data in found.texts if where not in ("script", "style"))
    assert not re.findall(r"\b(nan|NaN|None|inf|Undefined)\b", text)


def test_eight_methods_three_seeds_200_rounds_200_clients_stay_small(page):
    assert page("eight").stat().st_size < 3_000_000
    assert page("eight").stat().st_size < 1_500_000, "the aim"


def test_twenty_methods_stay_small(page):
    assert page("twenty").stat().st_size < 3_000_000


@pytest.mark.full
def test_equal_comparisons_give_equal_bytes(page, tmp_path):
    assert page_cases.write("five", tmp_path / "again.html").read_bytes() == page("five").read_bytes()


def test_nothing_outside_is_named_in_code(page):
    text = page("five").read_text(encoding="utf-8")
    code = "".join(re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", text, re.DOTALL))
    for word in (
        "http:",
        "https:",
        "//cdn",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "eval(",
        "innerHTML",
        "document.write",
    ):
        assert word not in code
    assert "default-src 'none'" in text


def test_the_page_says_what_the_findings_say(page, tree):
    comparison, found, _ = page_cases.case("five")
    text = " ".join("".join(data for _, data in tree("five").texts).split())
    assert " ".join(found.answer.split()) in text
    indices = [text.index(" ".join(flag.text.split())) for flag in found.flags]
    assert indices == sorted(indices), "flags in order of weight"
    assert comparison.command in text
    assert comparison.facts.law in text
    for line in found.lines:
        assert f"{line.scores['selected'].mean:.3f} ± {line.scores['selected'].std:.3f}" in text


def test_one_run_alone_speaks_of_no_differences(tree):
    text = "".join(data for where, data in tree("one").texts if where not in ("script", "style"))
    sections = [attributes["id"] for tag, attributes in tree("one").found if tag == "section"]
    assert "differences" not in sections
    assert {"answer", "results", "curves", "costs", "data", "again"} <= set(sections)
    assert "best other" not in text
    assert "star marks" not in text


def test_every_key_of_the_configuration_is_listed_those_that_differ_first(tree):
    comparison, _, _ = page_cases.case("five")
    heads = [data for where, data in tree("five").texts if where == "bdi"]
    at = [heads.index(key) for key in comparison.config]
    assert all(at)
    assert heads.index("local.lr") > heads.index("rounds"), "local.lr has its default"


def test_failed_runs_are_named_with_their_reason(tree):
    text = "".join(data for _, data in tree("failed").texts)
    assert text.count("the loss was not finite in round 3") >= 4


# ---- colours


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_words_and_marks_stand_out_from_their_ground(theme):
    grounds = {
        "card": "ink muted link good bad warn",
        "page": "ink muted link",
        "soft": "ink muted link",
        "warnsoft": "ink warn",
        "answer": "ink muted",
    }
    for ground, words in grounds.items():
        for word in words.split():
            assert contrast(theme[word], theme[ground]) >= 4.5, (word, ground)
    for mark in ["edge", *(name for name in theme if re.fullmatch(r"c\d", name))]:
        assert contrast(theme[mark], theme["card"]) >= 3, mark


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)
    assert contrast("#777777", "#777777") == 1


def test_no_two_names_of_a_theme_mean_one_colour():
    assert set(LIGHT) == set(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT), "the pictures' colours are mapped back to names"


EYES = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""What eyes without a kind of cone see, on linear RGB. Source: Machado, Oliveira and Fernandes 2009, severity 1."""


def lab(colour, eyes):
    linear = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    seen = np.clip(eyes @ linear, 0, 1)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ seen
        / [0.9505, 1, 1.089]
    )
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_series_are_told_apart_by_all_eyes(theme, eyes):
    colours = [theme[f"c{k}"] for k in range(HUES + 1)]
    apart = [np.linalg.norm(lab(a, EYES[eyes]) - lab(b, EYES[eyes])) for a, b in itertools.combinations(colours, 2)]
    assert min(apart) > 20


def test_twenty_methods_and_more_look_different():
    found = strokes(40, baseline=3)
    assert len(set(found)) == 40
    assert found[3].colour == "c0"
    assert [s.colour for s in found].count("c0") == 1


# ---- text from users


@pytest.mark.parametrize("text", page_cases.EVIL)
def test_any_text_can_be_stored_and_is_cut_to_size(text):
    kept = plain(text)
    assert kept.encode("utf-8")
    assert kept.isprintable()
    assert len(short(text)) <= 34
    assert len(short(text, 9)) <= 9


def test_long_names_keep_both_ends_and_differ():
    long = "fedprox(mu=0.01) + something very long indeed + "
    assert short(long + "a").startswith("fedprox")
    assert short(long + "ending").endswith("ending")
    same = [long + "x" * 100 + f"{k}" + "y" * 100 for k in range(5)]
    assert len(set(names(same))) == 5
    assert names(["", "a"]) == ("(no name)", "a")


def test_a_long_name_is_whole_in_its_tip_and_whole_in_the_list_of_methods(tree):
    long = " ".join(page_cases.EVIL[6].split())
    tips = [
        attributes["title"]
        for _, attributes in tree("hostile").found
        if attributes.get("title", "").startswith("long long")
    ]
    assert tips
    assert all(len(tip) <= 301 for tip in tips)
    assert any(long in data for _, data in tree("hostile").texts)
