"""Write bibliography entries as BibTeX and as sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from fedstrata.common.errors import ConfigError

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "article": ("author", "title", "journal", "year"),
    "inproceedings": ("author", "title", "booktitle", "year"),
    "techreport": ("author", "title", "institution", "year"),
    "misc": ("author", "title", "year"),
}
"""Fields that BibTeX wants, by type of entry."""

_ACCENTS = {
    "\N{COMBINING ACUTE ACCENT}": "'",
    "\N{COMBINING TILDE}": "~",
    "\N{COMBINING DIAERESIS}": '"',
    "\N{COMBINING CARON}": "v",
}
_LETTERS = {"\N{LATIN CAPITAL LETTER L WITH STROKE}": r"{\L}"}
_HEAD = re.compile(r"\s*@\s*(\w+)\s*\{\s*([^\s,{}\"#%~\\]+)\s*,")


@dataclass(frozen=True)
class Entry:
    r"""One publication.

    Attributes:
        key: unique, as in ``\cite{key}``.
        kind: a type of BibTeX entry, one of REQUIRED.
        fields: by BibTeX's names, in Unicode; braces keep capitals.
    """

    key: str
    kind: str
    fields: Mapping[str, str]

    @property
    def bibtex(self) -> str:
        """The entry for a .bib file, in ASCII."""
        width = max(len(name) for name in self.fields)
        lines = [f"  {name:<{width}} = {{{_latex(value)}}}," for name, value in self.fields.items()]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])

    @property
    def text(self) -> str:
        """The reference as a sentence: authors, year, title, where."""
        f = self.fields
        where = f.get("booktitle") or f.get("journal") or f.get("institution") or f.get("howpublished") or ""
        pages = [f"volume {f['volume']}"] if "volume" in f else []
        pages += [f"pages {_plain(f['pages'])}"] if "pages" in f else []
        parts = [
            ", ".join(_name(a) for a in f["author"].split(" and ")),
            f["year"],
            _plain(f["title"]),
            ", ".join([_plain(where), *pages]),
        ]
        return f"{'. '.join(part for part in parts if part)}."


def _latex(text: str) -> str:
    return "".join(_letter(c) for c in text)


def _letter(c: str) -> str:
    parts = unicodedata.normalize("NFD", c)
    if len(parts) == 1:
        return _LETTERS.get(c, c)
    base, accent = parts[0], _ACCENTS[parts[1]]
    return f"{{\\{accent}{{{base}}}}}" if accent.isalpha() else f"{{\\{accent}{base}}}"


def _plain(text: str) -> str:
    return text.replace("{", "").replace("}", "").replace("--", "-")


def _name(author: str) -> str:
    last, _, first = _plain(author).partition(", ")
    return f"{first} {last}".strip()


def key_of(bibtex: str) -> str:
    """Return the key of one BibTeX entry that a package offers.

    Raises:
        ConfigError: not one entry, unbalanced braces, or an unknown kind.
    """
    head = _HEAD.match(bibtex)
    if head is None or bibtex.count("{") != bibtex.count("}") or not bibtex.rstrip().endswith("}"):
        raise ConfigError(
            f"{bibtex[:60]!r} is no BibTeX entry; it looks like @article{{key, author = {{...}}, title = {{...}}, year"
            " = {2024}}."
        )
    return head[2]


def work(key: str, kind: str, author: str, title: str, year: int, **more: str) -> Entry:
    """Build an entry of any kind; ``more`` are further fields."""
    return Entry(key, kind, {"author": author, "title": title, "year": str(year), **more})


def talk(key: str, author: str, title: str, year: int, booktitle: str, **more: str) -> Entry:
    """Build an entry for a paper in proceedings."""
    return work(key, "inproceedings", author, title, year, booktitle=booktitle, **more)


def preprint(key: str, author: str, title: str, year: int, number: str) -> Entry:
    """Build an entry for a paper on arXiv, by its number."""
    return work(
        key,
        "article",
        author,
        title,
        year,
        journal=f"arXiv preprint arXiv:{number}",
        eprint=number,
        archiveprefix="arXiv",
    )


ICLR = "International Conference on Learning Representations"
NEURIPS = "Advances in Neural Information Processing Systems"
CVPR = "Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition"
PMLR = "Proceedings of Machine Learning Research"


def icml(number: int, volume: int, pages: str) -> dict[str, str]:
    """Return the fields of a paper of the International Conference on Machine Learning."""
    ordinal = f"{number}{'th' if 4 <= number % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
    where = f"Proceedings of the {ordinal} International Conference on Machine Learning"
    return {"booktitle": where, "series": PMLR, "volume": str(volume), "pages": pages}
