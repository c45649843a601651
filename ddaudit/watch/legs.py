"""The commands of a resume test: which of their words name the checkpoint folder, and how a script is told to resume.

In a command ``{ckpt}`` stands for an empty checkpoint folder and ``{last}`` for the checkpoint that was saved last.
Without them the usual options are recognised: the folder by its option, resuming by the option of the framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddaudit.errors import UsageProblem
from ddaudit.evidence.events import Stream

__all__ = ["Legs", "legs", "saved_path"]

CKPT, LAST = "{ckpt}", "{last}"
#: Options by which scripts name the folder of their checkpoints, most telling first.
FOLDERS = (
    "--ckpt-dir", "--ckpt_dir", "--checkpoint-dir", "--checkpoint_dir", "--checkpoint-folder", "--save-dir",
    "--save_dir", "--output_dir", "--output-dir", "--default_root_dir", "--trainer.default_root_dir", "--work-dir",
    "--work_dir", "--out-dir", "--out_dir", "--checkpoint-path", "--ckpt",
)  # fmt: skip
HF = ("--per_device_train_batch_size", "--save_strategy", "--save_steps", "--num_train_epochs", "--max_steps")


@dataclass(frozen=True)
class Legs:
    """Words of the three commands, with their placeholders."""

    through: tuple[str, ...]
    save: tuple[str, ...]
    resume: tuple[str, ...]

    def whole(self, folder: Path) -> list[str]:
        """Runs to the end."""
        return _filled(self.through, folder)

    def saving(self, folder: Path) -> list[str]:
        """Is killed after its first checkpoint."""
        return _filled(self.save, folder)

    def resuming(self, folder: Path, last: Path) -> list[str]:
        """Goes on from there."""
        return [word.replace(LAST, str(last)) for word in _filled(self.resume, folder)]


def _filled(words: Sequence[str], folder: Path) -> list[str]:
    return [word.replace(CKPT, str(folder)) for word in words]


def legs(argv: Sequence[str], save: Sequence[str] | None, resume: Sequence[str] | None) -> Legs:
    """The three commands; UsageProblem where the checkpoint folder cannot be told."""
    whole = _with_folder(argv)
    saving = whole if save is None else _with_folder(save)
    if resume is None:
        resume = [*whole, *_how(whole)]
    if not any(CKPT in word for words in (whole, saving) for word in words):
        raise UsageProblem(
            "--resume-test: it cannot be told where the command saves checkpoints",
            fix="write {ckpt} in its place: ... --my-folder {ckpt}",
        )
    return Legs(tuple(whole), tuple(saving), tuple(_with_folder(resume)))


def _with_folder(words: Sequence[str]) -> list[str]:
    """The words with the value of a folder option replaced by the placeholder."""
    found = list(words)
    if any(CKPT in word for word in found):
        return found
    for option in FOLDERS:
        for at, word in enumerate(found):
            if word == option and at + 1 < len(found):
                found[at + 1] = CKPT
                return found
            if word.startswith(f"{option}="):
                found[at] = f"{option}={CKPT}"
                return found
    return found


def _how(words: Sequence[str]) -> list[str]:
    """The option that resumes: of Hugging Face's Trainer, of Lightning's command line, or plain ``--resume``."""
    names = {word.partition("=")[0] for word in words}
    if "--output_dir" in names and names.intersection(HF):
        return ["--resume_from_checkpoint", LAST]
    if any(name.startswith("--trainer.") for name in names):
        return ["--ckpt_path", LAST]
    return ["--resume"]


def saved_path(streams: Sequence[Stream], folder: Path) -> Path | None:
    """The checkpoint saved first: a file in the folder, or the folder below it in which it lies."""
    saves = [
        c for s in streams for e in s.of("watched") for c in e.get("checkpoints", ()) if c.get("action") == "save"
    ]  # fmt: skip
    inside = [Path(str(c["path"])) for c in sorted(saves, key=lambda c: (int(c["update"]), float(c["t"])))]
    inside = [p for p in inside if folder in p.parents or p == folder]
    if not inside:
        return None
    below = inside[0].relative_to(folder).parts
    return folder / below[0] if below else folder
