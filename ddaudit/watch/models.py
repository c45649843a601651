"""Which models there are, and each outermost call of one: inputs, wrapper, synchronisation, time."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    given: tuple[Any, ...]
    seconds: float = 0.0

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors of the arguments; none once the call is over."""
        return list(fingerprint.leaves(self.given))


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
        self._buffered: tuple[int, list[Any]] | None = None
        """Modules with buffers of their own, as found for so many roots."""
        self._made: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        """Modules that were put together since the hooks came, by id."""
        self.depth = 0
        self.on_enter: Callable[[Call], None] = lambda call: None
        self.on_leave: Callable[[Call], None] = lambda call: None

    def install(self) -> None:
        """Hooks module calls, what modules are made of, and the DDP constructor."""
        nn.modules.module.register_module_parameter_registration_hook(self._grown)
        nn.modules.module.register_module_module_registration_hook(self._grown)
        wrap(nn.Module, "__call__", self._call)
        wrap(nn.parallel.DistributedDataParallel, "__init__", self._ddp)

    def forget(self) -> None:
        """Lets go of every model; those that train on are found again by their optimizers."""
        self.roots.clear()
        self.inner.clear()
        self.wrapped.clear()
        self.first_seen.clear()
        self.registered.clear()
        self._buffered = None

    def _grown(self, module: nn.Module, name: str, part: Any) -> None:
        """A module got a parameter or an inner module. It must not be kept alive by having been seen."""
        self._made[id(module)] = module

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
        """Finds the outermost modules that own the given parameters: among those that were seen to be put together, or,
        where these do not own them all (copies, older modules), among all objects alive."""
        wanted = {id(p) for p in parameters}
        modules = list({id(m): m for made in list(self._made.values()) for m in made.modules()}.values())
        if not wanted <= {id(p) for m in modules for p in m._parameters.values()}:
            modules = _alive(nn.Module)
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
        if self._buffered is None or self._buffered[0] != len(self.roots):
            inside = {id(m): m for root in self.roots.values() for m in root.modules()}
            owners = [m for m in inside.values() if m._buffers and not isinstance(m, SYNCED)]
            self._buffered = len(self.roots), owners
        found = [b for m in self._buffered[1] for b in self._kept_by_itself(m)]
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
            given=(args, kwargs),
        )
        self.on_enter(call)
        return call

    def _leave(self, call: Call) -> None:
        call.seconds = time.perf_counter() - call.began
        self.on_leave(call)
        call.given = ()


def _alive(kind: type) -> list[Any]:
    """All objects of a type and of those derived from it. Without a line of Python for each of a million objects."""
    kinds, waiting = {kind}, [kind]
    while waiting:
        derived: set[type] = set(type.__subclasses__(waiting.pop())) - kinds
        kinds |= derived
        waiting += derived
    found = gc.get_objects()
    return list(itertools.compress(found, map(kinds.__contains__, map(type, found))))


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
