"""Results in a notebook that a real kernel executes, and in scripts."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient

from fedstrata.common.errors import ConfigError, FedstrataError
from fedstrata.common.events import Finished, RoundDone, Started
from fedstrata.report.progress import shown
from fedstrata.report.progress.notebook import LiveTable, NotebookProgress, in_notebook
from helpers.handmade import comparison, result

TESTS = str(Path(__file__).parents[2])

CELLS = (
    "import fedstrata, warnings\nfrom fedstrata.report.progress import shown\nwarnings.simplefilter('error')",
    "result = fedstrata.run('fedavg', rounds=2, local_epochs=1, test='both', executor='loop')",
    "result",
    "result.plot()",
    "result.to_pandas()[['round', 'accuracy', 'metrics.auc']]",
    f"import sys; sys.path.insert(0, {TESTS!r})\nfrom helpers.handmade import comparison\nmade = comparison()\nmade",
    "made.plot()",
    "made.to_pandas('findings')[['label', 'selected_mean']]",
    "print(made)",
    (
        "from fedstrata.report.progress.notebook import LiveTable\n"
        "from fedstrata.report.terminal import comparison_table\n"
        "with LiveTable() as live:\n    live.update('nothing yet')\n    live.update(comparison_table(made.findings()))"
    ),
    "sorted(m for m in sys.modules if m.startswith('matplotlib.pyplot'))",
)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outputs of each cell, by a kernel of its own that has no settings of anybody's."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    return [cell.outputs for cell in notebook.cells]


def data_of(outputs, kind):
    return [output.data[kind] for output in outputs if "data" in output and kind in output.data]


class Outline(HTMLParser):
    """Tags that are opened and closed, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.full
def test_a_run_shows_its_progress_in_one_output(cells):
    (html,) = data_of(cells[1], "text/html")
    assert "<progress max='2' value='2'" in html
    assert re.search(r"round 2/2 &nbsp; accuracy 0\.\d{4}", html)
    assert "fedavg on digits" in html
    (plain,) = data_of(cells[1], "text/plain")
    assert plain.splitlines()[-1].startswith("round 2/2  accuracy 0.")


@pytest.mark.full
def test_a_result_is_a_table(cells):
    (html,) = data_of(cells[2], "text/html")
    outline = Outline(html)
    assert outline.open == []
    assert outline.seen.count("table") == 1
    assert "fedavg, seed 0, 2 rounds" in outline.text
    assert "personal accuracy, mean over clients" in outline.text


@pytest.mark.full
def test_a_plot_is_a_picture(cells):
    for cell in (3, 6):
        (png,) = data_of(cells[cell], "image/png")
        assert len(png) > 10_000
        assert png.startswith("iVBORw0KGgo")


@pytest.mark.full
def test_rounds_are_a_frame(cells):
    (html,) = data_of(cells[4], "text/html")
    outline = Outline(html)
    assert "metrics.auc" in outline.text
    assert sum(tag == "tr" for tag in outline.seen) == 3


@pytest.mark.full
def test_a_comparison_is_its_answer_a_table_and_its_flags(cells):
    (html,) = data_of(cells[5], "text/html")
    outline = Outline(html)
    assert outline.open == []
    assert html.startswith("<p><strong>On 3 seeds, ")
    assert sum(tag == "tr" for tag in outline.seen) == 6
    assert "li" in outline.seen
    (frame,) = data_of(cells[7], "text/html")
    assert "selected_mean" in frame
    (printed,) = [output.text for output in cells[8]]
    assert "differences to fedavg" in printed


@pytest.mark.full
def test_a_live_table_replaces_what_it_showed(cells):
    (html,) = data_of(cells[9], "text/html")
    assert "differences to fedavg" in html
    assert "nothing yet" not in html


@pytest.mark.full
def test_nothing_of_it_needs_pyplot(cells):
    assert data_of(cells[10], "text/plain") == ["[]"]


def test_user_text_is_escaped():
    label = "<script>alert(1)</script>"
    made = comparison(("fedavg", label), failed=((label, 0),))
    for html in (made._repr_html_(), result(label)._repr_html_()):
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_a_comparison_in_words_has_answer_table_and_flags():
    text = str(comparison(seeds=(0, 1)))
    assert text.startswith("With 2 seeds no conclusion")
    assert "fedprox(mu=0.01)" in text
    assert "! 2 seeds: no conclusion" in text
    assert max(map(len, text.splitlines())) <= 120


def test_frames_hold_what_the_result_holds():
    run = result()
    rounds, clients = run.to_pandas(), run.to_pandas("clients")
    assert list(rounds["accuracy"]) == [row["accuracy"] for row in run.rounds]
    assert list(rounds["measures.drift.cosine"].isna()) == [True, *[False] * 29]
    assert list(clients["personal"]) == [scores["personal"] for scores in run.clients.values()]


@pytest.mark.parametrize(
    ("what", "rows"), [("runs", 14), ("rounds", 14 * 30), ("clients", 14 * 20), ("findings", 5), ("differences", 18)]
)
def test_a_comparison_has_five_frames(what, rows):
    made = comparison(failed=(("ditto", 0),))
    frame = made.to_pandas(what)
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == rows
    assert frame.columns.is_unique


def test_means_of_the_runs_frame_are_those_of_the_findings():
    made = comparison()
    told = made.findings()
    means = made.to_pandas().groupby("label")["selected"].mean()
    for line in told.lines:
        assert means[line.label] == pytest.approx(line.scores["selected"].mean)


def test_an_unknown_frame_is_refused():
    with pytest.raises(ConfigError, match="it gives rounds, clients"):
        result().to_pandas("round")
    with pytest.raises(ConfigError, match="Did you mean 'findings'"):
        comparison(("fedavg",)).to_pandas("finding")


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedstrataError, match=r"fedstrata\[text\]"):
        result().to_pandas()


def test_a_plot_with_a_path_is_written_and_without_one_a_figure(tmp_path):
    for thing in (result(), comparison(("fedavg", "ditto"), seeds=(0, 1))):
        path = thing.plot(tmp_path / "x.svg")
        assert path.read_text().startswith("<?xml")
        assert isinstance(thing.plot(), Figure)
        assert thing.plot()._repr_png_() == thing.plot()._repr_png_()


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_lines_of_a_plot_are_means_over_seeds(seeds):
    made = comparison(("fedavg", "ditto"), seeds=seeds)
    axes = made.plot().axes
    assert len(axes) == 2
    for column, key in enumerate(("accuracy", "personal")):
        for place, label in enumerate(("fedavg", "ditto")):
            drawn = axes[column].lines[place].get_ydata()
            assert np.allclose(drawn, np.mean([[row[key] for row in run.rounds] for run in made.runs(label)], axis=0))
        assert len(axes[column].collections) == (2 if len(seeds) > 1 else 0)


def test_a_comparison_of_errors_and_one_without_runs_are_drawn():
    assert comparison(("fedavg",), regression=True).plot().axes[0].get_ylabel() == "test RMSE"
    nothing = comparison(("fedavg",), failed=[("fedavg", s) for s in (0, 1, 2)])
    assert len(nothing.plot()._repr_png_()) > 1000


class Handle:
    def __init__(self):
        self.shown = []

    def display(self, thing, display_id):
        assert display_id is True
        self.shown.append(thing)
        return self

    def update(self, thing):
        self.shown.append(thing)


@pytest.fixture
def kernel(monkeypatch):
    """As much of IPython as a kernel shows."""
    handle = Handle()
    shell = type("Shell", (), {"kernel": object()})()
    fake = type("IPython", (), {"get_ipython": staticmethod(lambda: shell), "display": handle})
    monkeypatch.setitem(sys.modules, "IPython", fake)
    return handle


START = Started(None, "fedavg", "digits", "mlp", "iid", 20, 5, 3, 9610, "loop", 1)


def row(number, **more):
    return {
        "round": number,
        "loss": 0.5,
        "bytes_up": 1_000_000,
        "bytes_down": 0,
        "seconds": 0.1,
        "refused": [],
        "accuracy": None,
    } | more


def test_outside_of_notebooks_nothing_is_shown_unless_wanted(capsys):
    assert not in_notebook()
    with shown() as observers:
        assert observers == ()
    with shown(True) as (observer,):
        observer(START)
    said = capsys.readouterr()
    assert "fedavg on digits" in said.err
    assert said.out == ""


def test_a_notebook_is_shown_unless_refused(kernel):
    with shown(False) as observers:
        assert observers == ()
    with shown() as (observer,):
        assert isinstance(observer, NotebookProgress)


def test_an_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    fake = type("IPython", (), {"get_ipython": staticmethod(object)})
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert not in_notebook()


def test_a_run_that_fails_leaves_its_last_state(kernel):
    def fails():
        with shown() as (observer,):
            observer(START)
            observer(RoundDone(row(0, accuracy=0.25)))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert repr(kernel.shown[-1]).endswith("round 1/3  accuracy 0.2500  loss 0.5000  up 1 MB  down 0 B  0.1 s")


def test_many_rounds_are_few_drawings_and_many_refusals_few_lines(kernel):
    with shown() as (observer,):
        observer(START)
        for number in range(3):
            observer(RoundDone(row(number, refused=[[client, "nan", "<b>"] for client in range(3)])))
        observer(Finished({}, None))
    assert len(kernel.shown) <= 4
    text = repr(kernel.shown[-1])
    assert text.count("left out, nan") == 5
    assert "and 4 more replies left out" in text
    assert "<b>" not in kernel.shown[-1]._repr_html_()


def test_a_live_table_is_one_output_that_changes(kernel):
    with LiveTable(width=60) as live:
        live.update("first [b]")
        live.update("second", refresh=False)
        live.update("third <i>")
    assert [repr(thing) for thing in kernel.shown] == ["first [b]", "third <i>"]
    assert kernel.shown[-1]._repr_html_() == "<pre>third &lt;i&gt;</pre>"
