"""The documentation site: it builds strictly, holds everything, needs no network, and works in a browser."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedstrata
from fedstrata.cli import app
from fedstrata.config.config import KEYS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.full
def test_the_site_builds_strictly_and_every_page_is_in_it(site):
    for path in (ROOT / "docs").rglob("*.md"):
        assert (site / path.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), path


@pytest.mark.full
def test_a_page_of_the_site_loads_nothing_from_a_network(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']?([^\"'> ]+)", text)
        linked = re.findall(r"<link\b[^>]*?\bhref=[\"']?([^\"'> ]+)", text)
        assert not [address for address in loaded + linked if address.startswith(("http:", "https:", "//"))], path.name
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?https?:[^)\"']*", path.read_text()), path.name


@pytest.mark.full
def test_the_theme_asks_no_service_for_a_repository(site):
    assert 'data-md-component="source"' not in (site / "index.html").read_text()  # its script would call api.github.com


@pytest.mark.full
def test_formulas_are_drawn_without_a_script(site):
    drawn = 0
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert 'class="arithmatex"' not in text, path.name
        drawn += text.count("<math ")
    assert drawn > 20


@pytest.mark.full
def test_the_reference_holds_every_setting_command_and_public_name(site):
    settings, commands, python = ((site / f"{name}.html").read_text() for name in ("config", "command", "python"))
    assert all(f"<code>{key}</code>" in settings for key in KEYS)
    assert all(f"fedstrata-{c.name or c.callback.__name__}" in commands for c in app.registered_commands)
    for name in fedstrata.__all__:
        assert re.search(rf'id="fedstrata\.[\w.]*{name}"', python), name


@pytest.mark.full
def test_generated_marks_were_all_replaced(site):
    assert not [
        path.name
        for path in site.rglob("*.html")
        if "&lt;!-- make:" in path.read_text() or "<!-- make:" in path.read_text()
    ]


# ---- in a browser


@pytest.fixture(scope="module")
def served(site):
    """The address of a server for the site, on this machine alone."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def requests(chromium):
    """Addresses that the browser asked for since the last look."""
    told = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    return [it["params"]["request"]["url"] for it in told if it["method"] == "Network.requestWillBeSent"]


@pytest.mark.full
@pytest.mark.parametrize("name", ["index", "families/drift", "command", "python"])
def test_a_page_opens_without_errors_and_asks_nobody_else(chromium, served, name):
    requests(chromium), chromium.get_log("browser")
    chromium.get(f"{served}/{name}.html")
    time.sleep(0.5)
    assert not [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    asked = [url for url in requests(chromium) if url.startswith("http")]
    assert asked
    assert not [url for url in asked if not url.startswith(served)]


@pytest.mark.full
def test_a_narrow_page_does_not_scroll_sideways(chromium, served):
    for name in ("families/drift", "config", "methods", "choose"):
        chromium.set_window_size(500, 900)  # as narrow as this browser gets
        chromium.get(f"{served}/{name}.html")
        wide, shown = chromium.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= shown, name
    chromium.set_window_size(1280, 900)


@pytest.mark.full
def test_the_search_finds_a_page_without_a_network(chromium, served):
    chromium.get(f"{served}/index.html?q=control+variate")
    for _ in range(100):
        found = chromium.execute_script(
            "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
        )
        if found:
            break
        time.sleep(0.1)
    assert any("methods" in url or "drift" in url or "catalogues" in url for url in found), found
    assert not [url for url in requests(chromium) if url.startswith("http") and not url.startswith(served)]


@pytest.mark.full
def test_a_formula_is_drawn_as_one(chromium, served):
    chromium.get(f"{served}/families/drift.html")
    box = chromium.execute_script(
        "const b = document.querySelector('.formula math').getBoundingClientRect(); return [b.width, b.height]"
    )
    assert box[0] > 80
    assert box[1] > 20  # a fraction is taller than a line of text
