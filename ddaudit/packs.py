"""Packs: folders with ``checks/``, ``probes/``, ``runbooks/`` and ``templates/``. One loader for ours and theirs.

Packs are code. Only ``--pack DIR``, ``DDAUDIT_PACKS`` and installed entry points (group ``ddaudit.packs``) load one,
never a folder that merely lies nearby.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ddaudit.errors import PackProblem
from ddaudit.registry import Registry, filling, suggest

__all__ = ["Failure", "Pack", "Packs", "builtin", "load", "named"]

ENV = "DDAUDIT_PACKS"


@dataclass(frozen=True)
class Pack:
    """One folder. ``builtin`` marks ddaudit's own, whose probes are the package's."""

    name: str
    folder: Path
    builtin: bool = False

    @property
    def module(self) -> str:
        """Package name under which its files are imported; the hash keeps equal folder names apart."""
        tag = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        return "ddaudit_pack_builtin" if self.builtin else f"ddaudit_pack_{self.name.replace('-', '_')}_{tag}"


@dataclass(frozen=True)
class Failure:
    """A file of a pack that did not import. Reported as an ERROR finding, never as silence."""

    pack: str
    file: str
    error: str
    trace: str


@dataclass
class Packs:
    """Everything that loading found."""

    packs: list[Pack] = field(default_factory=list)
    registry: Registry = field(default_factory=Registry)
    runbooks: dict[str, Path] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def template_folders(self) -> list[Path]:
        """User packs first, so that a template of the same name overrides ours."""
        return [p.folder / "templates" for p in reversed(self.packs) if (p.folder / "templates").is_dir()]

    @property
    def extra(self) -> list[str]:
        """Folders of all packs but the built-in one, as worker processes must be told."""
        return [str(p.folder) for p in self.packs if not p.builtin]

    def runbook(self, name: str) -> Path:
        """Path of a runbook given by id or by file path."""
        if name.endswith(".md") and Path(name).is_file():
            return Path(name)
        if name not in self.runbooks:
            raise PackProblem(f"no runbook is called {name!r}", fix=suggest(name, self.runbooks))
        return self.runbooks[name]


def builtin() -> Path:
    """Folder of the built-in pack: inside the wheel, or the repository root of an editable install."""
    here = Path(__file__).resolve().parent
    return here / "_pack" if (here / "_pack").is_dir() else here.parent


def load(
    folders: Sequence[str | Path] = (),
    *,
    entries: bool = True,
    environment: bool = True,
    parts: Sequence[str] = ("checks", "probes"),
    files: str = "*.py",
) -> Packs:
    """Loads the built-in pack, entry points, ``DDAUDIT_PACKS`` and ``folders``, in that order.

    ``parts`` says which code is imported: a rank needs probes alone, and importing a hundred checks in each rank of
    each step would cost more than starting it. ``files`` is a pattern of file names: an audit of a checkpoint asks
    the checkpoint's checks, and all others would take longer to import than half a GiB takes to read.

    Raises:
        PackProblem: a folder does not exist or holds nothing of a pack, or an id is declared twice.
    """
    loaded = Packs()
    _add(loaded, Pack("builtin", builtin(), builtin=True), parts, files)
    for folder in named(folders, entries=entries, environment=environment):
        if folder not in [p.folder for p in loaded.packs]:
            _add(loaded, Pack(folder.name, folder), parts, files)
    return loaded


def named(folders: Sequence[str | Path] = (), *, entries: bool = True, environment: bool = True) -> list[Path]:
    """Folders of all packs but the built-in one, in the order of loading; none of their code is imported.

    Raises:
        PackProblem: a folder does not exist or holds nothing of a pack.
    """
    found = _entry_folders() if entries else []
    found += [Path(p) for p in os.environ.get(ENV, "").split(os.pathsep) if p] if environment else []
    resolved = dict.fromkeys(f.expanduser().resolve() for f in [*found, *(Path(f) for f in folders)])
    for folder in resolved:
        _is_pack(folder)
    return list(resolved)


def _entry_folders() -> list[Path]:
    """Folders that installed distributions offer. Ours is loaded first by name and is left out here."""
    return [_entry_folder(e) for e in entry_points(group="ddaudit.packs") if e.value != "ddaudit.packs:builtin"]


def _entry_folder(entry: EntryPoint) -> Path:
    try:
        return Path(entry.load()())
    except (Exception, SystemExit) as error:
        what = f"the installed pack {entry.name!r} does not load: {type(error).__name__}: {error}"
        fix = "mend or uninstall its distribution, or run with --packs builtin"
        raise PackProblem(what, where=entry.value, fix=fix) from error


PARTS = ("checks", "probes", "runbooks", "templates", "triage")


def _is_pack(folder: Path) -> None:
    if not folder.is_dir():
        raise PackProblem("no such folder", where=str(folder), expected="the folder of a pack")
    if not any((folder / part).is_dir() for part in PARTS):
        raise PackProblem("not a pack", where=str(folder), expected=f"a folder with one of {', '.join(PARTS)}/")


def _add(loaded: Packs, pack: Pack, parts: Sequence[str], files: str) -> None:
    _is_pack(pack.folder)
    loaded.packs.append(pack)
    with filling(loaded.registry):
        for part in parts:
            _import_part(loaded, pack, part, files)
    for path in sorted((pack.folder / "runbooks").glob("*.md")):
        if path.stem in loaded.runbooks:
            raise PackProblem(
                f"runbook {path.stem!r} exists twice",
                where=str(path),
                expected=f"one; the other is {loaded.runbooks[path.stem]}",
            )
        loaded.runbooks[path.stem] = path


def _import_part(loaded: Packs, pack: Pack, part: str, files: str) -> None:
    folder = pack.folder / part
    package = f"{pack.module}.{part}"
    if pack.builtin and part == "probes":
        folder, package = Path(__file__).resolve().parent / "probes", "ddaudit.probes"
    elif folder.is_dir():
        _declare(pack.module, pack.folder)
        _declare(package, folder)
    for path in sorted(folder.rglob(files)) if folder.is_dir() else []:
        relative = path.relative_to(folder).with_suffix("")
        if any(p.startswith("_") for p in relative.parts):
            continue
        name = ".".join([package, *relative.parts])
        try:
            # A second load in one process must fill the new registry, so a module of an earlier load runs anew.
            sys.modules.pop(name, None)
            importlib.import_module(name)
        except PackProblem:
            raise
        except (Exception, SystemExit) as error:  # a file that exits on import must not end ddaudit
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{path}:{last.lineno}" if last.filename == str(path) else str(path)
            message = f"{type(error).__name__}: {error}"
            loaded.failures.append(Failure(pack.name, where, message, traceback.format_exc()))


def _declare(name: str, folder: Path) -> None:
    """Makes an importable package out of a folder without ``__init__``, so that relative imports work in packs."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
