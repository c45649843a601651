"""The reference model: a plain pre-norm decoder-only transformer.

Parameter names are the same whatever part of the model a rank holds: blocks live in a ``ModuleDict`` keyed by their
global index, and a pipeline stage keeps only its entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddaudit.training.params import TrainParams

__all__ = [
    "Attention",
    "Block",
    "FeedForward",
    "MixtureOfExperts",
    "ModelShape",
    "Transformer",
    "shape_of",
    "token_loss",
]

DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Dtype of the parameters. bf16 keeps fp32 parameters and computes under autocast, the usual mixed precision."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a transformer. ``experts`` 0 is a dense feed-forward layer; otherwise ``top_k`` of them per token."""

    layers: int
    width: int
    heads: int
    vocab: int
    seq_len: int
    experts: int = 0
    top_k: int = 2
    dropout: float = 0.0
    autocast: bool = False

    def parameters_per_token(self) -> int:
        """Weights that multiply every token: all matrices, the output head included, embeddings left out; of the
        experts only the ``top_k`` that a token visits."""
        feed_forward = 8 * self.width**2 * (self.top_k if self.experts else 1) + self.width * self.experts
        return self.layers * (4 * self.width**2 + feed_forward) + self.width * self.vocab

    def flops_per_token(self) -> float:
        """Training FLOPs per token, 6 P + 12 L h s: forward 2 P, backward 4 P, and attention scores over the full
        sequence (causality not subtracted). P is :meth:`parameters_per_token`. Source: Chowdhery et al., PaLM (2022),
        appendix B."""
        return 6.0 * self.parameters_per_token() + 12.0 * self.layers * self.width * self.seq_len


PRESETS: dict[str, ModelShape] = {
    "tiny": ModelShape(layers=4, width=32, heads=4, vocab=32, seq_len=32),
    "small": ModelShape(layers=4, width=128, heads=4, vocab=256, seq_len=64),
    "medium": ModelShape(layers=8, width=512, heads=8, vocab=4096, seq_len=512),
    "large": ModelShape(layers=16, width=2048, heads=16, vocab=32768, seq_len=2048),
}


def shape_of(params: TrainParams) -> ModelShape:
    """The preset's shape with what the parameters change."""
    base = PRESETS[params.preset]
    return ModelShape(
        layers=base.layers,
        width=base.width,
        heads=base.heads,
        vocab=base.vocab,
        seq_len=params.seq_len or base.seq_len,
        experts=params.expert_count,
        top_k=min(2, params.expert_count) or 2,
        dropout=params.dropout,
        autocast=params.dtype == "bf16",
    )


class Embedding(nn.Module):
    """Token plus learned position embeddings: ids [batch, seq] -> [batch, seq, width]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.seq_len, shape.width)

    def forward(self, ids: Tensor, offset: int = 0) -> Tensor:
        positions = torch.arange(offset, offset + ids.shape[1], device=ids.device)
        embedded: Tensor = self.tokens(ids) + self.positions(positions)
        return embedded


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot-product attention; all arguments [batch, heads, seq, head width]."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention. The head count follows from the projections' width, so that a rank that holds a slice
    of the heads (tensor parallelism) runs the same code; ``core`` is replaced by context parallelism."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        # A bias on the keys adds the same score to every key of a query, so softmax gives it a gradient of zero: its
        # computed gradient would be rounding noise alone, which no comparison of gradients could judge.
        self.key = nn.Linear(shape.width, shape.width, bias=False)
        self.value = nn.Linear(shape.width, shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.core = causal_attention

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        mixed = self.core(query, key, value).transpose(1, 2)
        projected: Tensor = self.out(mixed.flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (-1, self.head_width)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class MixtureOfExperts(nn.Module):
    """Top-k mixture without a capacity limit: every token reaches its k best experts, weighted by a softmax over the
    chosen gate scores. ``experts`` is keyed by global index; ``apply_experts`` is replaced by expert parallelism."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.top_k = shape.top_k
        self.gate = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleDict({str(i): FeedForward(shape.width) for i in range(shape.experts)})
        self.apply_experts = self.apply_local

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        scores, chosen = self.gate(tokens).topk(self.top_k, dim=-1)
        weights = scores.softmax(dim=-1)
        copies = tokens.repeat_interleave(self.top_k, dim=0)
        outputs = self.apply_experts(copies, chosen.flatten())
        mixed: Tensor = (outputs.view(-1, self.top_k, x.shape[-1]) * weights.unsqueeze(-1)).sum(dim=1)
        return mixed.view_as(x)

    def apply_local(self, tokens: Tensor, expert: Tensor) -> Tensor:
        """Sends each row of ``tokens`` [n, width] through the expert that ``expert`` [n] names."""
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.gate.out_features).tolist()
        parts = torch.split(tokens[order], counts)
        done = torch.cat([self.experts[str(i)](part) for i, part in enumerate(parts)])
        return done[order.argsort()]


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp: nn.Module = MixtureOfExperts(shape) if shape.experts else FeedForward(shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        y: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return y


class Transformer(nn.Module):
    """The whole model, or the part of it that :meth:`keep` left."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed: Embedding | None = Embedding(shape)
        self.blocks = nn.ModuleDict({str(i): Block(shape) for i in range(shape.layers)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(shape.width)
        self.head: nn.Linear | None = nn.Linear(shape.width, shape.vocab, bias=False)

    @classmethod
    def seeded(cls, params: TrainParams, device: torch.device) -> Transformer:
        """The full model with weights that depend on ``params.seed`` alone: the same on every rank, device and dtype
        up to rounding. Drawn in fp32 on the CPU, so that no weight has to be sent anywhere."""
        generator = torch.Generator().manual_seed(params.seed)
        shape = shape_of(params)
        model = cls(shape)
        depth_scale = (2 * shape.layers) ** -0.5
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif weight.ndim == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=_std(name, shape) * (depth_scale if residual else 1.0), generator=generator)
        return model.to(device=device, dtype=DTYPES[params.dtype])

    def keep(self, layers: Iterable[int], *, first: bool, last: bool) -> Transformer:
        """Drops all blocks but ``layers``, the embedding unless ``first``, the head unless ``last``; returns self."""
        kept = {str(i) for i in layers}
        self.blocks = nn.ModuleDict({key: block for key, block in self.blocks.items() if key in kept})
        if not first:
            self.embed = None
        if not last:
            self.norm = self.head = None
        return self

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """ids [batch, seq] (or activations [batch, seq, width] of the previous stage) -> logits [batch, seq, vocab]
        (or activations for the next stage). ``offset`` is the position of the first id in its sample."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.shape.autocast):
            x = self.embed(x, offset) if self.embed is not None else x
            for block in self.blocks.values():
                x = block(x)
            if self.norm is not None and self.head is not None:
                x = self.head(self.norm(x))
        return x


def _std(name: str, shape: ModelShape) -> float:
    """Embeddings are drawn wide enough to be told apart at once; the head stays narrow, so that the first loss is
    the uniform guess, ln(vocab)."""
    if name.startswith("embed.tokens"):
        return 0.5
    return 0.02 if name.startswith(("head", "embed.positions")) else float(shape.width**-0.5)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of cross-entropies in nats over targets that are not -100; in fp32 at least, whatever the logits are."""
    wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
