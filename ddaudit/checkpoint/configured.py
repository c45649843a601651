"""Weights against the ``config.json`` beside them: vocabulary, width, depth; and one dtype against the rest."""

from __future__ import annotations

import re
from collections import Counter

from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import area_of

_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|layer|blocks|block)\.(\d+)\.")
_FEW = 3  # at most one weight in four counts as the odd one


def check_configured(made: Checkpoint) -> None:
    """Notes weights that a model built from the configuration would not take."""
    weights = [t for t in made.tensors.values() if area_of(t.name, True) == "model"]
    config = made.facts.get("config", {})
    embedding = next((t for t in weights if t.name.endswith(_EMBEDDINGS) and len(t.shape) == 2), None)
    if embedding is not None:
        _embedding(made, embedding, config)
    depth = config.get("num_hidden_layers", config.get("n_layer"))
    seen = {int(m[1]) for t in weights if (m := _LAYER.search(t.name)) and len(m[1]) < 9}
    if type(depth) is int and seen and max(seen) + 1 < depth:
        _note(made, "layers", depth, max(seen) + 1, weights[0].file)
    _odd_dtype(made, weights)


def _embedding(made: Checkpoint, embedding: Tensor, config: dict[str, object]) -> None:
    """A vocabulary may be padded to more rows, never cut; some models embed into a width of their own."""
    rows, width = embedding.shape
    vocabulary = config.get("vocab_size")
    if type(vocabulary) is int and 0 < rows < vocabulary:
        _note(made, "words", vocabulary, rows, embedding.file)
    own = ("embedding_size", "word_embed_proj_dim")
    hidden = next((config[k] for k in ("hidden_size", "n_embd", "d_model") if type(config.get(k)) is int), None)
    if hidden is not None and width not in (hidden, *(config.get(k) for k in own)):
        _note(made, "columns", hidden, width, embedding.file)


def _note(made: Checkpoint, what: str, said: object, have: int, file: str) -> None:
    text = f"config.json speaks of {said} {what}, the weights have {have}"
    made.fault("weights.config-mismatch", text, file=file, key="config.json", measured=have, limit=str(said))


def _odd_dtype(made: Checkpoint, weights: list[Tensor]) -> None:
    """A few 16-bit weights among 32-bit ones were cast by accident; the reverse is how norms are kept exact."""
    floats = [t for t in weights if t.dtype in ("float32", "float16", "bfloat16") and len(t.shape) > 1]
    counts = Counter(t.dtype for t in floats)
    low = [t for t in floats if t.dtype != "float32"]
    if low and len(low) * _FEW <= counts["float32"]:
        text = f"{low[0].name} is {low[0].dtype}, {counts['float32']} other weights are float32"
        made.fault("weights.mixed-dtype", text, file=low[0].file, tensor=low[0].name, measured=low[0].dtype,
                   limit="float32")  # fmt: skip
