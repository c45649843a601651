"""Which models there are, and each outermost call of one: inputs, wrapper, synchronisation, time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddaudit.watch import fingerprint
from ddaudit.watch.patching import Guard, wrap

__all__ = ["Call", "Models"]

NORMS = nn.modules.batchnorm._NormBase
SYNCED = nn.SyncBatchNorm


@dataclass
class Call:
    """One outermost call of a watched model. ``sync`` is None where no DDP or FSDP2 wrapper was called."""

    model: int
    grad: bool
    training: bool
    sync: bool | None
    """Whether the wrapper is set to reduce gradients."""
    bypass: bool
    began: float
    seconds: float = 0.0
    inputs: list[Tensor] = field(default_factory=list)


class Models:
    """Roots: wrapped models, and models whose parameters an optimizer holds."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.roots: dict[int, nn.Module] = {}
        self.inner: dict[int, int] = {}
        """id of a wrapper's inner module -> id of the wrapper."""
        self.wrapped: list[dict[str, Any]] = []
        self.registered: set[int] = set()
        """ids of the parameters that a DDP wrapper will reduce."""
        self.first_seen: dict[tuple[int, str], tuple[int, int]] = {}
        """(id of a module, name of its buffer) -> identity and version of the buffer."""
        self.depth = 0
        self.on_enter: Callable[[Call], None] = lambda call: None
        self.on_leave: Callable[[Call], None] = lambda call: None

    def install(self) -> None:
        """Hooks module calls and the DDP constructor."""
        wrap(nn.Module, "__call__", self._call)
        wrap(nn.parallel.DistributedDataParallel, "__init__", self._ddp)

    def forget(self) -> None:
        """Lets go of every model; those that train on are found again by their optimizers."""
        self.roots.clear()
        self.inner.clear()
        self.wrapped.clear()
        self.first_seen.clear()
        self.registered.clear()

    def _ddp(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(wrapper: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(wrapper, module, *args, **kwargs)
            self.guard.call("ddp", self._note_ddp, wrapper, module)

        return init

    def _note_ddp(self, wrapper: Any, module: nn.Module) -> None:
        self.roots[id(wrapper)] = wrapper
        self.roots[id(module)] = module
        self.inner[id(module)] = id(wrapper)
        self.registered |= {id(p) for p in module.parameters() if p.requires_grad}
        self.wrapped.append(
            {
                "parameters": sum(1 for _ in module.parameters()),
                "reduced": sum(p.requires_grad for p in module.parameters()),
                "broadcast_buffers": bool(wrapper.broadcast_buffers),
                "find_unused_parameters": bool(wrapper.find_unused_parameters),
                "static_graph": bool(wrapper.static_graph),
            }
        )

    def reductions(self) -> list[dict[str, float]]:
        """What DDP's own timers say about the backward pass of each wrapper that was called, in seconds.

        The smaller of its average, which holds the first passes and their connecting, and its latest sample."""
        found = []
        for wrapper in (r for r in self.roots.values() if isinstance(r, nn.parallel.DistributedDataParallel)):
            told = wrapper._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            times = [
                (float(told.get(f"{kind}comm_time", 0)), float(told.get(f"{kind}compute_comm_overlap_time", 0)))
                for kind in ("avg_backward_", "backward_")
            ]
            if all(comm > 0 for comm, _ in times):
                exposed = min(max(0.0, comm - hidden) for comm, hidden in times)
                found.append({"comm_s": min(comm for comm, _ in times) / 1e9, "exposed_s": exposed / 1e9})
        return found

    def adopt(self, parameters: list[Tensor]) -> None:
        """Finds the outermost modules that own the given parameters, among all objects alive."""
        wanted = {id(p) for p in parameters}
        modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
        owners = [m for m in modules if any(id(p) in wanted for p in m._parameters.values() if p is not None)]
        children = {id(c) for m in modules for c in m._modules.values() if c is not None}
        top = [m for m in modules if id(m) not in children]
        names = {id(o) for o in owners}
        for module in top:
            if id(module) not in self.roots and any(id(m) in names for m in module.modules()):
                self.roots[id(module)] = module
                if isinstance(module, nn.parallel.DistributedDataParallel) and id(module.module) not in self.inner:
                    self._note_ddp(module, module.module)  # wrapped before the hooks came

    def names(self) -> dict[int, str]:
        """id of a parameter -> its name in its root, wrappers' prefixes left out."""
        found: dict[int, str] = {}
        for root in self.roots.values():
            for name, parameter in root.named_parameters():
                found.setdefault(id(parameter), name.removeprefix("module.").removeprefix("_forward_module."))
        return found

    def trainable(self) -> dict[int, Tensor]:
        """Parameters of the roots that require gradients, by id."""
        return {id(p): p for root in list(self.roots.values()) for p in root.parameters() if p.requires_grad}

    def norm_digest(self) -> float:
        """Digest of running statistics that every rank keeps for itself (SyncBatchNorm left out), and of other stored
        buffers that training changes; NaN for none."""
        found: list[Tensor] = []
        seen: set[int] = set()
        for root in self.roots.values():
            for module in root.modules():
                if module._buffers and not isinstance(module, SYNCED) and id(module) not in seen:
                    seen.add(id(module))
                    found += self._kept_by_itself(module)
        return float(fingerprint.tensors(found)) if found else float("nan")

    def _kept_by_itself(self, module: nn.Module) -> Iterator[Tensor]:
        """Buffers that a checkpoint would hold and that are not as they were when first seen: tables and masks, which
        may be large, never change."""
        for name, buffer in module._buffers.items():
            if buffer is None or not buffer.is_floating_point() or name in module._non_persistent_buffers_set:
                continue
            mark = (id(buffer), -1 if buffer.is_inference() else buffer._version)
            if self.first_seen.setdefault((id(module), name), mark) != mark or isinstance(module, NORMS):
                yield buffer

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        roots, guard = self.roots, self.guard

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in roots or self.depth or torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            noted = guard.call("call", self._enter, module, args, kwargs)
            if noted is None:
                return original(module, *args, **kwargs)
            self.depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self.depth -= 1
                guard.call("call-end", self._leave, noted)

        return call

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Call:
        is_ddp = isinstance(module, nn.parallel.DistributedDataParallel)
        call = Call(
            model=id(module),
            grad=torch.is_grad_enabled(),
            training=module.training,
            sync=bool(module.require_backward_grad_sync) if is_ddp else reduces(module),
            bypass=id(module) in self.inner,
            began=time.perf_counter(),
            inputs=list(fingerprint.leaves([args, kwargs])),
        )
        self.on_enter(call)
        return call

    def _leave(self, call: Call) -> None:
        call.seconds = time.perf_counter() - call.began
        self.on_leave(call)
        call.inputs = []


def reduces(module: nn.Module) -> bool | None:
    """Whether FSDP2 reduces gradients in the next backward pass; None for other modules."""
    if not hasattr(module, "_get_fsdp_state"):
        return None
    wrapped: list[Any] = [m for m in module.modules() if hasattr(m, "_get_fsdp_state")]
    states = (m._get_fsdp_state() for m in wrapped)
    groups = (g for state in states for g in groups_of(state))
    found = next(groups, None)
    return None if found is None else bool(found.reduce_grads)


def groups_of(state: Any) -> list[Any]:
    """Parameter groups of one FSDP2 state; releases of torch differ in whether there is one or several."""
    several = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None)
    return list(several) if several else [one] if one is not None else []
