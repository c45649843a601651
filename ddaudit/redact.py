"""Redaction by allow-list: what of the environment, argv and logs may enter a record.

Names on the list may be recorded; their values, and all free text, still lose anything shaped like a secret, and every
value that this process was told as one (:func:`learn`), however it is dressed up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "HIDDEN",
    "known_secrets",
    "learn",
    "redact_argv",
    "redact_environment",
    "redact_text",
    "redact_value",
    "secrets_of",
]

HIDDEN = "[redacted]"

#: Prefixes of environment variables that explain a distributed run and hold no personal data by convention.
ALLOWED_PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "OMP_", "MKL_", "KMP_", "CUDA_", "UCX_", "PYTORCH_", "DDAUDIT_")
ALLOWED_NAMES = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_RESTART_COUNT",
        "KUBERNETES_SERVICE_PORT",
        "CI",
        "NO_COLOR",
        "LANG",
        "LC_ALL",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
    }
)

#: Words that make a name's value a secret. "tokens", "tokenizer", "token_embedding", "pad_token" and "author" are a
#: training log's own words.
_WORDS = (
    r"(?:(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)token(?![\w-])|secret|passw(?:or)?d|passphrase"
    r"|api[-_]?key|access[-_]?key|private[-_]?key|credential|(?<![a-z])auth(?:orization)?(?![a-z]))"
)
_TELLING_NAME = re.compile(_WORDS, re.IGNORECASE)
#: A bare number is a count, such as pad_token=0.
_PLAIN = r"(?!\d+(?:\.\d+)?(?![\w.]))[^\s\"',;&]+"
_VALUE = rf"(?:\"[^\"\n]*\"|'[^'\n]*'|{_PLAIN})"
_SCHEME = r"(?:(?:bearer|basic|token)\s{1,8})?"
_VENDORS = ("hf_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "sk-", "pypi-", "AKIA", "ASIA", "wandb_")
# Repetitions are bounded where they could start anywhere: hostile text must not make them quadratic.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.S),
        HIDDEN,
    ),
    (re.compile(rf"(?i)({_WORDS}[\w-]{{0,64}}\\?[\"']?\s{{0,8}}[=:]\s{{0,8}}\\?){_SCHEME}{_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(--?[\w-]{{0,64}}{_WORDS}[\w-]{{0,64}}\s{{1,8}})(?!-){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s{1,8}[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@:]+:[^\s/@]+@"), rf"\1{HIDDEN}@"),
    (re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_VENDORS)})[A-Za-z0-9_-]{{10,}}"), HIDDEN),
    (re.compile(r"(?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}"), HIDDEN),
)
#: A text with none of these holds nothing that a pattern would match; most texts end here.
_TRACES = (
    *("token", "secret", "passw", "passphrase", "key", "credential", "auth", "bearer", "basic", "://", "eyj"),
    *(vendor.lower() for vendor in _VENDORS),
)

#: A shorter value would take honest words along.
SHORTEST_SECRET = 8
_known: dict[str, None] = {}


def learn(values: Iterable[str]) -> None:
    """Remembers values that this process was told in confidence: from now on no text keeps them.

    Values shorter than :data:`SHORTEST_SECRET`, plain numbers and paths that exist are not secrets.
    """
    for value in values:
        number = value.replace(".", "", 1).isdigit()
        if len(value) >= SHORTEST_SECRET and not number and not (value.startswith("/") and _is_path(value)):
            _known[value] = None


def _is_path(value: str) -> bool:
    try:
        return Path(value).exists()
    except OSError:  # too long for a path, so it is none
        return False


def known_secrets() -> tuple[str, ...]:
    """What :func:`learn` was told, for handing on to the processes that work for this one."""
    return tuple(_known)


def secrets_of(environment: Mapping[str, str], argv: Sequence[str] = (), params: Any = None) -> Iterator[str]:
    """Values whose names tell of a secret: variables, words behind a flag or ``=``, and parameters however deep."""
    yield from (value for name, value in environment.items() if _TELLING_NAME.search(name))
    for before, word in zip(("", *argv), argv, strict=False):
        name, equals, value = word.partition("=")
        if equals and _TELLING_NAME.search(name):
            yield value
        elif before.startswith("-") and "=" not in before and _TELLING_NAME.search(before) and word[:1] != "-":
            yield word
    yield from _telling_values(params)


def _telling_values(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, str) and _TELLING_NAME.search(str(name)):
                yield item
            else:
                yield from _telling_values(item)
    elif isinstance(value, list | tuple):
        yield from secrets_of({}, [item for item in value if isinstance(item, str)])  # it may be a command line
        for item in value:
            yield from _telling_values(item)


def redact_text(text: str) -> str:
    """Replaces everything shaped like a secret (``key=value`` pairs with a telling key, bearer tokens, URL passwords,
    private keys, tokens with a vendor's well-known prefix) and every secret this process knows."""
    for secret in _known:
        text = text.replace(secret, HIDDEN)
    lower = text.lower()
    if any(trace in lower for trace in _TRACES):
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
    return text


def redact_value(value: Any) -> Any:
    """The same for JSON-like data, however deep: texts are redacted, numbers are not, and a text whose key tells of a
    secret is hidden whole. Lists of words are read as a command line."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if isinstance(item, str) and item and _TELLING_NAME.search(str(key)) else redact_value(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):
            return redact_argv(value)
        # A step's thousands of sample ids are numbers all; looking at one saves looking at each.
        return list(value) if value and type(value[0]) in (int, float) else [redact_value(item) for item in value]
    return value


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Keeps allowed names only; an allowed name that tells of a secret keeps its name and loses its value."""
    kept = {k: v for k, v in environment.items() if k in ALLOWED_NAMES or k.startswith(ALLOWED_PREFIXES)}
    return {k: HIDDEN if _TELLING_NAME.search(k) else redact_text(v) for k, v in sorted(kept.items())}


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Redacts each word, and the word that follows a flag with a telling name (``--api-key VALUE``)."""
    result: list[str] = []
    hide_next = False
    for word in argv:
        result.append(HIDDEN if hide_next and not word.startswith("-") else redact_text(word))
        hide_next = word.startswith("-") and "=" not in word and _TELLING_NAME.search(word) is not None
    return result
