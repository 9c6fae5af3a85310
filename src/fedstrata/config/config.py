"""Hold every setting of a run in one frozen record; names are the same in TOML, on the command line and in Python."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedstrata.common.call_syntax import parse_call, parse_calls
from fedstrata.common.errors import ConfigError
from fedstrata.common.registry import known_names
from fedstrata.common.suggest import near, suggestion
from fedstrata.config import toml_files
from fedstrata.config.fields import NULL_WORDS, Key, flatten, table
from fedstrata.config.lr_schedules import schedule
from fedstrata.config.sections import (
    Auto,
    Checkpoint,
    Count,
    Eval,
    Finetune,
    LocalSettings,
    NewClients,
    Parallel,
    Positive,
    Section,
    StopSettings,
)

if TYPE_CHECKING:
    from fedstrata.data.federation import Federation
    from fedstrata.data.types import Task

EXCLUSIVE = (("local.epochs", "local.steps"), ("finetune.epochs", "finetune.steps"))
TESTS = ("server", "client", "both", "own")
CLASS_PARTITION = "dirichlet(alpha=0.3)"  # what "auto" means for classes if the data have no clients
NON_RESULT_SETTINGS = frozenset(
    {"data.root", "executor", "workers", "client_state", "checkpoint.every", "out", "name", "track"}
)  # where and how, not what

MODELS: Mapping[str, str] = {
    "digits": "mlp",
    "mnist": "cnn",
    "fashion_mnist": "cnn",
    "cifar10": "cnn",
    "cifar100": "resnet8",
    "tiny_imagenet": "resnet8",
    "pacs": "resnet18",
    "ag_news": "transformer",
    "shakespeare": "char_lstm",
    "synthetic": "logistic",
    "synthetic_iid": "logistic",
}
"""What ``model = "auto"`` means, by data set.

Other data: transformer for tokens, cnn for images of 28 pixels or more, otherwise mlp.
"""


class Config(Section):
    """Every setting of a run; see ``fedstrata run --help``.

    Keyword arguments may be nested (``local={"lr": 0.05}``), dotted (``**{"local.lr": 0.05}``) or, as Python names have
    no dots, written with an underscore for the dot (``local_lr=0.05``, ``data_root="data"``).

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range, or settings that exclude each other.
    """

    method: str = Field(default="fedavg", description="method, or a chain of methods: fedprox(mu=0.01) + fedavgm")
    data: str = Field(default="digits", description="data set: fedstrata list datasets")
    data_root: str | None = Field(
        default=None, alias="data.root", description="folder of the data; none reads $FEDSTRATA_DATA"
    )
    augment: str = Field(default="none", description="augmentation of training images: crop(pad=4) + flip")
    partition: str = Field(
        default="auto",
        description=(
            "how samples are assigned to clients; auto: natural if the data have clients, otherwise"
            " dirichlet(alpha=0.3)"
        ),
    )
    test: str = Field(
        default="server",
        description=(
            "test data: server (one test set), client (a split of it for each client), both; own(share=0.2): each"
            " client keeps a share of its samples"
        ),
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of each client's samples for validation, which selects the best round",
    )
    heldout: float = Field(default=0.0, ge=0, lt=1, description="share of the clients excluded from training")
    clients: Count | Auto = Field(
        default="auto", description="number of clients; auto: as many as the data have, otherwise 20"
    )
    cohort: Count | Auto = Field(
        default="auto", description="clients that train in a round; auto: 10, or all if there are fewer"
    )
    rounds: Count = Field(default=100, description="number of rounds")
    model: str = Field(default="auto", description="model: fedstrata list models; auto: depends on the data set")
    norm: Literal["auto", "batch", "group", "none"] = Field(
        default="auto", description="normalization layers; auto: those of the published model"
    )
    bn: Literal["share", "local", "server", "trained", "batch"] = Field(
        default="share",
        description=(
            "batch-norm statistics: averaged, each client's, the server's, those of trained groups, or of the batch"
        ),
    )
    weighting: Literal["samples", "uniform"] = Field(
        default="samples", description="weights of clients: by samples, or equal"
    )
    local: LocalSettings = LocalSettings()
    schedule: str = Field(
        default="constant",
        description="factor on local.lr by round: cosine, step(rounds=[160, 240]), warmup(rounds=5) + cosine",
    )
    finetune: Finetune = Finetune()
    new_clients: NewClients = NewClients()
    eval: Eval = Eval()
    measures: str = Field(
        default="auto",
        description=(
            "diagnostics of evaluated rounds: fedstrata list measures; auto: those that the method brings; none"
        ),
    )
    stop: StopSettings = StopSettings()
    quorum: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, le=1)] = Field(
        default=0,
        description="accepted replies that a round needs: a number (5), or a share of the cohort (0.5)",
    )
    max_update_norm: Positive | None = Field(
        default=None, description="largest norm of an update that is accepted; none accepts every finite one"
    )
    seed: int = Field(default=0, ge=0, description="seed of all random numbers")
    executor: str = Field(
        default="auto",
        description=(
            "how clients are trained: fedstrata list executors; auto: the fastest of those with bit-equal results"
        ),
    )
    workers: Parallel | Auto = Field(default="auto", description="clients trained in parallel; auto: one per core")
    client_state: Literal["memory", "mapped"] = Field(
        default="memory", description="where client states are stored: in memory, or in a memory-mapped file"
    )
    checkpoint: Checkpoint = Checkpoint()
    track: str = Field(
        default="none",
        description="trackers that receive the curves: tensorboard + mlflow; fedstrata list trackers",
    )
    out: str = Field(default="runs", description="folder in which run folders are created")
    name: str = Field(default="auto", description="name of the run folder; auto: made from the configuration")

    def __init__(self, _sources: Mapping[str, str] | None = None, /, **settings: Any) -> None:
        given = _known(_dotted(settings), "")
        try:
            super().__init__(**_nested(_over({}, given, "")))
        except ValidationError as error:
            raise ConfigError(_message(error, given, _sources or {})) from error

    @field_validator("method", "augment", "partition", "model", "data", "measures", "track", "executor")
    @classmethod
    def _call(cls, text: str, info: ValidationInfo) -> str:
        (parse_calls if info.field_name in ("method", "augment", "measures", "track") else parse_call)(text)
        return text

    @field_validator("executor")
    @classmethod
    def _executor(cls, text: str) -> str:
        name, names = parse_call(text).name, known_names("executors")
        if name not in names:
            raise ConfigError(f"executor is {text!r}; it is one of {', '.join(names)}.{suggestion(name, names)}")
        return text

    @field_validator("test")
    @classmethod
    def _test(cls, text: str) -> str:
        try:
            call = parse_call(text)
        except ConfigError:
            call = None
        if call is None or call.name not in TESTS or (call.name != "own" and (call.named or call.positional)):
            near = suggestion(text if call is None else call.name, TESTS)
            raise ConfigError(f"test is {text!r}; it is server, client, both or own(share=0.2).{near}")
        return text

    @field_validator("out", "data_root")
    @classmethod
    def _folder(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None and (not text or "\0" in text):
            name = "data.root" if info.field_name == "data_root" else str(info.field_name)
            raise ConfigError(f"{name} is {text!r}; it is the path of a folder ({name}=. is the current one).")
        return text

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
            raise ConfigError(
                f"name is {name[:60]!r}; it is a folder name of letters, digits, dots, hyphens and underscores, at most"
                " 128."
            )
        return name

    @model_validator(mode="after")
    def _meant(self) -> Self:
        schedule(self.schedule, self.rounds)
        if isinstance(self.cohort, int) and isinstance(self.clients, int) and self.cohort > self.clients:
            raise ConfigError(
                f"cohort is {self.cohort}, but there are {self.clients} clients; a round cannot train more clients than"
                " there are."
            )
        if isinstance(self.workers, int) and self.workers > 1 and self.executor == "loop":
            raise ConfigError(
                f"workers is {self.workers}, but executor=loop trains one client at a time; use executor=threads or"
                " processes, or leave workers out."
            )
        return self

    @classmethod
    def read(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
        """Read a configuration: the command line overrides the file, which overrides the defaults.

        Args:
            path: a TOML file, which may name a ``base`` beside it; None is defaults only.
            overrides: "key=value" texts.
        Raises:
            ConfigError: names the key, the value, its source, and what would be right.
        """
        layers = [
            (name, _known(settings, name))
            for name, settings in (toml_files.read(Path(path)) if path is not None else [])
        ]
        layers.append(("command line", _known(command_line(overrides), "command line")))
        merged: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for source, settings in layers:
            merged = _over(merged, settings, source)
            sources |= dict.fromkeys(settings, source)
        return cls(sources, **merged)

    def replace(self, **changes: Any) -> Config:
        """Return a copy with other values, which are validated; names as in the constructor."""
        return Config(**_over(self.flat(), _known(_dotted(changes), ""), ""))

    def flat(self) -> dict[str, Any]:
        """Return every setting with its value, by public name, in the documented order."""
        return {name: _at(self, key.path) for name, key in KEYS.items()}

    def to_toml(self) -> str:
        """Return the whole configuration as TOML; "none" is no value. Reading it gives an equal one."""
        return toml_files.write(
            ((name,) if len(KEYS[name].path) == 1 else KEYS[name].path, value) for name, value in self.flat().items()
        )

    def digest(self) -> str:
        """Return the SHA-256 (hex) of all settings that decide the result; NON_RESULT_SETTINGS do not."""
        deciding = {name: value for name, value in self.flat().items() if name not in NON_RESULT_SETTINGS}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def differences(self, other: Config) -> tuple[Difference, ...]:
        """Return the settings that differ; NON_RESULT_SETTINGS included."""
        ours, theirs = self.flat(), other.flat()
        return tuple(Difference(name, ours[name], theirs[name]) for name in KEYS if ours[name] != theirs[name])

    def federation(self) -> Federation:
        """Read the data and assign them to clients.

        Raises:
            ConfigError: an unknown data set, partition or setting.
            DataError: data that are missing, damaged, or cannot be assigned this way.
        """
        from fedstrata.data.federation import load  # torch takes seconds to load  # noqa: PLC0415
        from fedstrata.data.loading import DataSpec  # noqa: PLC0415

        spec = DataSpec(
            data=self.data,
            root=self.data_root,
            augment=None if self.augment == "none" else self.augment,
            partition=None if self.partition == "auto" else self.partition,
            class_partition=CLASS_PARTITION,
            clients=None if self.clients == "auto" else self.clients,
            test=self.test,
            validation=self.validation,
            heldout=self.heldout,
            seed=self.seed,
        )
        return load(spec)

    def cohort_of(self, clients: int) -> int:
        """Return the number of clients a round, of those that may train.

        Raises:
            ConfigError: more than there are.
        """
        if self.cohort == "auto":
            return min(10, clients)
        if self.cohort > clients:
            raise ConfigError(
                f"cohort is {self.cohort}, but {clients} clients may train; use cohort={clients} or less."
            )
        return self.cohort

    def needed(self, cohort: int) -> int:
        """Return the accepted replies that a round of ``cohort`` clients needs, at least 1."""
        wanted = math.ceil(self.quorum * cohort) if isinstance(self.quorum, float) else self.quorum
        if wanted > cohort:
            raise ConfigError(
                f"quorum is {self.quorum} replies, but a round has {cohort} clients; use quorum={cohort} or less, or a"
                " share such as 0.5."
            )
        return max(1, wanted)

    def worker_count(self) -> int:
        """Return the clients trained in parallel: as set, or one per usable core."""
        if self.workers != "auto":
            return self.workers
        return (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )  # Linux alone tells usable ones

    def model_for(self, task: Task) -> str:
        """Return the model in call syntax: as set, or by data set (MODELS), or by the shape of a sample."""
        if self.model != "auto":
            return self.model
        name = parse_call(self.data).name
        if name in MODELS:
            return MODELS[name]
        if task.vocabulary:
            return "transformer"
        return "cnn" if len(task.shape) == 3 and min(task.shape[1:]) >= 28 else "mlp"


@dataclass(frozen=True)
class Difference:
    """One key on which two configurations differ."""

    key: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.ours!r} here, {self.theirs!r} there"


KEYS: dict[str, Key] = table(Config)
"""Every setting by public name, in the order of ``--help``."""

_SPELLINGS = {name.replace(".", "_"): name for name in KEYS if "." in name}


def command_line(texts: Iterable[str]) -> dict[str, Any]:
    """Read settings from "key=value" texts, by the type of the key.

    Raises:
        ConfigError: text without =, an unknown key, a key given twice, or a value that the key does not take.
    """
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name.startswith("-"):
            word = name.lstrip("-")
            hit = near(word, KEYS, 1)
            raise ConfigError(
                f"{text!r} is not key=value; settings are written like {hit[0] if hit else 'rounds'}={value or '...'}."
            )
        if name not in KEYS:
            raise ConfigError(_unknown(name, "command line"))
        if name in given:
            raise ConfigError(
                f"{name} is given twice on the command line ({given[name]!r} and {value!r}); give it once."
            )
        given[name] = KEYS[name].read(value)
    return given


def _unknown(name: str, source: str) -> str:
    where = f" ({source})" if source else ""
    inside = [key for key in KEYS if key.startswith(f"{name}.")]
    if inside and name not in KEYS:
        return f"{name} is a group of settings, not a setting{where}: {', '.join(inside)}."
    return f"there is no setting {name!r}{where}.{suggestion(name, KEYS)} `fedstrata run --help` shows all."


def _known(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings if every name is known; "none" is read as no value where that is valid."""
    for name in settings:
        if name not in KEYS:
            raise ConfigError(_unknown(name, source))
    return {n: None if KEYS[n].optional and isinstance(v, str) and v in NULL_WORDS else v for n, v in settings.items()}


def _over(below: Mapping[str, Any], above: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Merge two layers; ``above`` overrides ``below``, and one of two exclusive settings unsets the other."""
    for pair in EXCLUSIVE:
        chosen = [name for name in pair if above.get(name) is not None]
        if len(chosen) == 2:
            both = " and ".join(f"{name} is {above[name]!r}" for name in chosen)
            where = f" ({source})" if source else ""
            raise ConfigError(f"{both}{where}; they exclude each other: give one of the two.")
        if chosen:
            below = {name: value for name, value in below.items() if name not in pair}
    return {**below, **above}


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return Python's keyword arguments by public name."""
    return flatten({_SPELLINGS.get(name, name): value for name, value in settings.items()})


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted names as the sections do."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = KEYS[name].path
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def _message(error: ValidationError, flat: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Write a pydantic error in our words: each wrong key once, with its value, its source and what is right."""
    messages: dict[str, str] = {}
    for problem in error.errors():
        cause = problem.get("ctx", {}).get("error")
        key = _key_at(problem["loc"])
        if isinstance(cause, ConfigError):
            messages.setdefault(
                str(cause), f"{key.name}: {cause}" if key and key.name not in str(cause) else str(cause)
            )
        elif key:
            messages.setdefault(key.name, key.refusal(flat.get(key.name, problem["input"]), sources.get(key.name, "")))
        else:
            messages.setdefault(problem["msg"], f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}.")
    return " ".join(messages.values())


def _key_at(loc: tuple[int | str, ...]) -> Key | None:
    names = tuple(str(part) for part in loc)
    hits = [key for key in KEYS.values() if names[: len(key.path)] == key.path or names[:1] == (key.name,)]
    return hits[0] if hits else None


def _at(config: BaseModel, path: tuple[str, ...]) -> Any:
    value: Any = config
    for name in path:
        value = getattr(value, name)
    return value
