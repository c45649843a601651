"""Redaction by allow-list: what of the environment, argv and logs may enter a record.

Names on the list may be recorded; their values, and all free text, still lose anything shaped like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["HIDDEN", "redact_argv", "redact_environment", "redact_text"]

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

#: Words that make a name's value a secret. "tokens", "tokenizer" and "author" are a training log's own words.
_WORDS = (
    r"(?:token(?!s|iz)|secret|passw(?:or)?d|passphrase|api[-_]?key|access[-_]?key|private[-_]?key|credential"
    r"|(?<![a-z])auth(?:orization)?(?![a-z]))"
)
_TELLING_NAME = re.compile(_WORDS, re.IGNORECASE)
_VALUE = r"(?!\d+(?:\.\d+)?(?![\w.]))[^\s\"',;&]+"  # a bare number is a count, such as pad_token=0
_VENDORS = r"hf_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|sk-|pypi-|AKIA|ASIA|wandb_"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(rf"(?i)([\w-]*{_WORDS}[\w-]*[\"']?\s*[=:]\s*[\"']?)(?:bearer\s+|basic\s+)?{_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(--?[\w-]*{_WORDS}[\w-]*\s+)(?!-){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@"), rf"\1{HIDDEN}@"),
    (re.compile(rf"\b(?:{_VENDORS})[A-Za-z0-9_-]{{10,}}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}"), HIDDEN),
)


def redact_text(text: str) -> str:
    """Replaces everything shaped like a secret: ``key=value`` pairs with a telling key, bearer tokens, URL passwords,
    private keys, and tokens with a vendor's well-known prefix."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


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
