"""A run that is read back from its folder: what it was made of, and its engine as a checkpoint left it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from fedstrata.common.errors import StateError
from fedstrata.config.config import Config
from fedstrata.core.chain import Method
from fedstrata.core.params import Model, Params
from fedstrata.core.state import fill_state, state_tensors
from fedstrata.data.federation import Federation
from fedstrata.engine.assembly import RunComponents, assemble
from fedstrata.engine.ledger import Cost
from fedstrata.engine.rounds import Engine
from fedstrata.engine.server import Server, planned
from fedstrata.runs.folder import manifest_of, read_manifest, same_run
from fedstrata.storage import Checkpoint, load
from fedstrata.wire.frame import MessageSize

SUMMARY, CHECKPOINTS = "summary.json", "checkpoints"


def recalled(
    folder: Path,
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
) -> tuple[RunComponents, tuple[str, ...]]:
    """What the run in a folder is made of, and what a user must know of other versions than the run began with.

    Args:
        folder: of the run.
        root: folder of the data, where they are not where the run had them.
        federation: as in :func:`run`.
        module: as in :func:`run`.
        method: as in :func:`run`.
    Raises:
        StateError: no run there, or a configuration, data set or code that is not this run's.
    """
    manifest = read_manifest(folder)
    for name, given in (("federation", federation), ("module", module), ("method", method)):
        if name in manifest["custom"] and given is None:
            raise StateError(
                f"{folder} was run with a {name} from Python; give it again from Python: {name}=... beside the folder"
                f" {str(folder)!r}."
            )
    config = Config.read(folder / "config.toml")
    same_run(config, manifest, folder)
    parts = assemble(config if root is None else config.replace(**{"data.root": str(root)}), federation, module, method)
    now = manifest_of(parts, custom=manifest["custom"])
    for key, meaning in (
        ("fingerprint", "data or partition"),
        ("layout", "model"),
        ("frozen_base", "frozen base of the model"),
    ):
        if now[key] != manifest[key]:
            raise StateError(
                f"{folder}: the {meaning} is not what the run began with ({key} {now[key][:12]} now,"
                f" {manifest[key][:12]} then); restore it."
            )
    versions = tuple(
        f"{k} was {manifest['versions'].get(k)} and is {v}: the result may differ in the last bits"
        for k, v in now["versions"].items()
        if v != manifest["versions"].get(k)
    )
    return parts, (*versions, *_another_processor(manifest.get("processor"), now["processor"]))


def _another_processor(then: object, now: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note if the run began on another kind of processor."""
    if not isinstance(then, Mapping) or dict(then) == dict(now):
        return ()
    began, here = (f"{kind.get('model')} ({kind.get('capability')})" for kind in (then, now))
    note = (
        f"The run began on {began} and continues on {here}: rounding differs between kinds of processor, so the result"
        " may differ from that of an uninterrupted run."
    )
    return (note,)


def restored(
    folder: str | Path,
    *,
    root: str | Path | None = None,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    method: Method | None = None,
) -> tuple[Engine, tuple[str, ...]]:
    """The engine of a finished run in its final state, and notes as in :func:`recalled`; the folder is only read.

    Args:
        folder: of the run.
        root: as in :func:`recalled`.
        federation: as in :func:`run`.
        module: as in :func:`run`.
        method: as in :func:`run`.
    Raises:
        StateError: no run there, one that is not finished, a damaged checkpoint, or another run's configuration, data
            or model.
    """
    folder = Path(folder)
    read_manifest(folder)
    if not (folder / SUMMARY).is_file():
        raise StateError(f"{folder}: the run is not finished; go on with it first: fedstrata resume {folder}")
    parts, notes = recalled(folder, root=root, federation=federation, module=module, method=method)
    checkpoint = load(folder / CHECKPOINTS)
    refuse_another(checkpoint, parts, folder / CHECKPOINTS)
    engine = Engine(parts, "loop", 1)
    load(folder / CHECKPOINTS, engine.states)
    take_up(engine, checkpoint)
    engine.serving.ready()
    return engine, notes


def identity(parts: RunComponents) -> list[str]:
    """What a checkpoint is of: settings and data."""
    return [parts.config.digest(), parts.federation.fingerprint]


def refuse_another(checkpoint: Checkpoint, parts: RunComponents, folder: Path) -> None:
    """Refuse the checkpoint of another run.

    Raises:
        StateError: it is of other settings or data.
    """
    if checkpoint.meta.get("run", identity(parts)) != identity(parts):
        raise StateError(
            f"{folder} holds the checkpoint of another run (other settings or data); put this run's own back, or start"
            " it anew."
        )


def take_up(engine: Engine, checkpoint: Checkpoint) -> None:
    """Put an engine where the checkpoint was made."""
    meta, rules = checkpoint.meta, engine.parts.rules
    engine.server = _server(checkpoint, engine.server)
    engine.plan = planned(rules.base, engine.server, rules, {})
    engine.seconds, engine.lowest, engine.stopped_by = meta["seconds"], meta["lowest"], meta["stopped_by"]
    up, up_framing, down, down_framing, flops = meta["cost"]
    engine.ledger.total = Cost(MessageSize(up, up_framing), MessageSize(down, down_framing), flops)
    engine.ledger.costs = dict(meta["costs"])


def tensors_of(server: Server) -> dict[str, Tensor]:
    """Return what a checkpoint keeps of a server: parameters, statistics and the pieces' states by name."""
    tensors = {"params": server.model.flat, "statistics": server.model.statistics.flat}
    for piece, state in server.states.items():
        tensors |= {f"state/{piece}/{name}": tensor for name, tensor in state_tensors(state).items()}
    return tensors


def _server(checkpoint: Checkpoint, template: Server) -> Server:
    tensors, like = checkpoint.tensors, template.model
    statistics = Params(tensors["statistics"], like.statistics.spec)
    model = Model(Params(tensors["params"], like.spec), statistics)
    states = {}
    for piece, state in template.states.items():
        prefix = f"state/{piece}/"
        mine = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        states[piece] = fill_state(state, mine)
    return Server(checkpoint.round + 1, model, states)
