"""The model that is trained, as numbers: parameters and floating-point operations of a transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RECOMPUTE", "Recompute", "Shape", "hfu", "mfu"]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer. ``ffn`` is the width of the feed-forward layer (of one expert); ``experts`` 0 is a
    dense model, otherwise ``top_k`` of them run per token."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int
    ffn: int = 0
    kv_heads: int = 0
    gated: bool = False
    tied: bool = True
    experts: int = 0
    top_k: int = 2

    @property
    def width(self) -> int:
        """Width of the feed-forward layer; 4 h where not told."""
        return self.ffn or 4 * self.hidden

    @property
    def attention_parameters(self) -> float:
        """Weights of one layer's attention: 2 h^2 for query and output, 2 h^2 kv/heads for key and value."""
        shared = (self.kv_heads or self.heads) / self.heads
        return 2.0 * self.hidden**2 * (1 + shared)

    @property
    def expert_parameters(self) -> float:
        """Weights of one feed-forward network: two matrices, three when gated."""
        return (3.0 if self.gated else 2.0) * self.hidden * self.width

    @property
    def embedding_parameters(self) -> float:
        """Weights of one embedding table."""
        return float(self.vocab) * self.hidden

    @property
    def layer_parameters(self) -> float:
        """Weights of one layer, all experts included; biases and norms are left out."""
        return self.attention_parameters + self.expert_parameters * max(1, self.experts)

    @property
    def parameters(self) -> float:
        """All weights: 12 L h^2 for a plain layer (Narayanan et al. 2021, eq. 2) and the embedding tables."""
        return self.layers * self.layer_parameters + self.embedding_parameters * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> float:
        """Weights that multiply every token: layers (of the experts only ``top_k``) and output head."""
        routed = self.expert_parameters * (self.top_k if self.experts else 1)
        return self.layers * (self.attention_parameters + routed) + self.embedding_parameters

    def layer_flops(self, recompute: Recompute = "none") -> float:
        """FLOPs of one layer per token, forward and backward: 6 P + 12 h s (scores over the whole sequence, causality
        not subtracted; Chowdhery et al. 2022, appendix B). Recomputing repeats the forward third: of everything when
        ``full``, of the scores when ``selective``.
        """
        routed = self.expert_parameters * (self.top_k if self.experts else 1)
        matrices = 6.0 * (self.attention_parameters + routed)
        scores = 12.0 * self.hidden * self.seq_len
        again = {"none": 0.0, "selective": scores / 3, "full": (matrices + scores) / 3}
        return matrices + scores + again[recompute]

    @property
    def head_flops(self) -> float:
        """FLOPs of the output head per token, forward and backward: 6 V h."""
        return 6.0 * self.embedding_parameters

    def flops_per_token(self, recompute: Recompute = "none") -> float:
        """All FLOPs of one training token."""
        return self.layers * self.layer_flops(recompute) + self.head_flops


def mfu(shape: Shape, tokens_per_s: float, devices: int, peak_flops: float) -> float:
    """Model FLOPs utilisation: useful FLOPs per second over what the devices could do (Chowdhery et al. 2022)."""
    return tokens_per_s * shape.flops_per_token() / (devices * peak_flops)


def hfu(shape: Shape, tokens_per_s: float, devices: int, peak_flops: float, recompute: Recompute) -> float:
    """Hardware FLOPs utilisation: what was recomputed counts as well."""
    return tokens_per_s * shape.flops_per_token(recompute) / (devices * peak_flops)
