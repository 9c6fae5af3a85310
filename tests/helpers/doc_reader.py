"""A reader who does what a page says: all blocks of one page in one folder, in order, in a process of their own.

Runs of comparisons are made in the process of their command, one after another: a process for each would import
everything anew.
"""

import os
import re
import resource
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

import fedstrata
import fedstrata.report.export
import fedstrata.report.page
import fedstrata.report.runs
from fedstrata.cli import main
from fedstrata.compare import execution
from fedstrata.config.config import KEYS, Config
from helpers import doc_pages

TRAINS = ("run", "compare", "sweep", "check", "describe", "doctor")  # commands that take settings
PYTHON = ("run", "compare", "sweep")  # functions that do


@dataclass
class Brought:
    """What the test brings along for a page that is kept free of comments.

    Attributes:
        files: Python that makes what the page speaks of without making it.
        words: placeholders of the page -> what stands for them.
        settings: over those of its commands.
        left: commands that are not run, as a regular expression.
    """

    files: str = ""
    words: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    left: str = "$^"


def play(name: str, folder: str, log: str, brought: Brought) -> None:
    """Run a page.

    The process ends with 0 where everything did what it says, otherwise with 1 and the reason in ``log``.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        os.chdir(folder)
        _surroundings()
        blocks = [doc_pages.Block("prepare", brought.files, 0), *doc_pages.blocks(Path(name))]
        for block in blocks:
            block.settings |= brought.settings
        _blocks(blocks, Path(name).name, brought)
    except BaseException:  # whatever it was, the test shows it
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor time {sum((mine.ru_utime, mine.ru_stime, theirs.ru_utime, theirs.ru_stime)):.1f} s", flush=True)
    os._exit(0)


def _surroundings() -> None:
    plain = execution.prepare
    execution.prepare = lambda request, in_process: plain(request, in_process=True)
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path.cwd()))  # a file of the reader's own can be imported
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = "120"
    for given in ("FEDSTRATA_DATA", "FORCE_COLOR"):
        os.environ.pop(given, None)


@contextmanager
def _reports(*, wanted: bool) -> Iterator[None]:
    """Comparisons and runs are reported on, or their answer is printed and no page, picture or table is written."""
    places = [
        (fedstrata.report.page, "write_page"),
        (fedstrata.report.page, "write_pictures"),
        (fedstrata.report.export, "write_tables"),
    ]
    places += [(fedstrata.report.runs, "write_page"), (fedstrata.report.runs, "write_pictures")]
    plain = [getattr(module, name) for module, name in places]
    try:
        for module, name in places if not wanted else []:
            setattr(module, name, (lambda comparison, found, path: path) if name == "write_page" else (lambda *_: []))
        yield
    finally:
        for (module, name), function in zip(places, plain, strict=True):
            setattr(module, name, function)


def _blocks(blocks: list[doc_pages.Block], name: str, brought: Brought) -> None:
    space = {"__name__": "__main__", "__file__": name}
    for block in blocks:
        print(f"\n---- {name}, line {block.line}: {block.title or block.language}", flush=True)
        with _reports(wanted=block.settings.pop("report", "") != "none"):
            _block(block, name, space, brought)


def _block(block: doc_pages.Block, name: str, space: dict[str, object], brought: Brought) -> None:
    if block.skip:
        print(f"skipped because {block.skip}")
    elif block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.source)
    elif block.language == "bash":
        _shell(block, brought)
    elif block.language == "toml":
        _toml(block)
    else:
        _python(block, name, space)


def _python(block: doc_pages.Block, name: str, space: dict[str, object]) -> None:
    plain = {word: getattr(fedstrata, word) for word in PYTHON if hasattr(fedstrata, word)}
    try:
        for word, function in plain.items():
            setattr(fedstrata, word, _with(function, block.settings))
        exec(compile("\n" * (block.line - 1) + block.source, name, "exec"), space)
    finally:
        for word, function in plain.items():
            setattr(fedstrata, word, function)


def _with(function, settings: dict[str, str]):
    """The function with the settings of the page over those of the block."""

    def called(*arguments, **given):
        for key, text in settings.items():
            if key == "--seeds" and function.__name__ != "run":
                given["seeds"] = [int(seed) for seed in text.split(",")]
            elif not key.startswith("--"):
                section, _, rest = key.partition(".")
                if isinstance(given.get(section), dict):
                    given[section] = {k: v for k, v in given[section].items() if k != rest}
                given[key.replace(".", "_")] = KEYS[key].read(text)
        return function(*arguments, **given)

    return called


def _toml(block: doc_pages.Block) -> None:
    path = Path(f"block-{block.line}.toml")
    path.write_text(block.source)
    Config.read(path)


def _shell(block: doc_pages.Block, brought: Brought) -> None:
    lines = doc_pages.commands(block.source)
    for place, line in enumerate(lines):
        wanted = block.exits if place == len(lines) - 1 else 0
        meant = line
        for word, instead in brought.words.items():
            meant = re.sub(word, instead, meant)
        if re.fullmatch(brought.left, meant):
            print(f"not run: {meant}")
            continue
        print(f"$ {meant}", flush=True)
        code = _command(meant, block.settings)
        assert code == wanted, f"exit code {code} instead of {wanted}: {meant}"


def _command(line: str, settings: dict[str, str]) -> int:
    """The exit code of one command; ours are run in a fork of this process, which has everything imported."""
    given = shlex.split(line)
    given[0] = given[0].removeprefix(".venv/bin/")
    if re.search(r"[|><;&$]", re.sub(r"'[^']*'|\"[^\"]*\"", "", line)) or given[0] not in ("fedstrata", "python"):
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", line.replace(".venv/bin/", "")], check=False
        ).returncode
    if given[0] == "python":
        return _forked(lambda: _script(overridden(given[1:], settings)))
    return _forked(lambda: _fedstrata(overridden(given[1:], settings)))


def overridden(words: list[str], settings: dict[str, str]) -> list[str]:
    """A command line with settings of the page in place of its own.

    >>> overridden(["compare", "mine.toml", "--seeds", "0", "1", "2", "rounds=50"], {"rounds": "2", "--seeds": "0,1"})
    ['compare', 'mine.toml', '--seeds', '0', '1', 'rounds=2']
    """
    if words[:2] == ["-m", "pytest"]:
        return [*words, "-k", settings["-k"]] if "-k" in settings else words
    if not any(word in TRAINS for word in words[:2]):
        return words
    kept: list[str] = []
    options = {key: text.split(",") for key, text in settings.items() if key.startswith("--")}
    inside = False
    for word in words:
        if word.startswith("--"):
            inside = word in options
            kept += [word, *options[word]] if inside else [word]
        elif inside and re.fullmatch(r"[\d.]+", word):
            continue
        elif word.partition("=")[0] not in settings:
            inside = False
            kept.append(word)
    return kept + [f"{key}={text}" for key, text in settings.items() if not key.startswith("--")]


def _forked(action) -> int:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = action()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:  # shown, then counted as a failure
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _fedstrata(arguments: list[str]) -> int:
    main(arguments)
    return 0


def _script(arguments: list[str]) -> int:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    return 0
