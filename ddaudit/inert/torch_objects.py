"""What the names in a torch pickle mean: tensors as views on storages, sizes, dtypes, and wrappers of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ddaudit.inert.machine import Meaning
from ddaudit.inert.meanings import PLAIN, Record
from ddaudit.inert.nodes import Call, Global, Malformed

_STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
    "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32",
}

ITEM_BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "bool": 8,
    "complex32": 32,
    "complex64": 64,
    "complex128": 128,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8,
    "qint8": 8,
    "quint8": 8,
    "qint32": 32,
}
_MAX_DIMS = 64


class Storage:
    """A run of raw bytes named `key` in its file; `numel` counts items of `dtype`."""

    __slots__ = ("dtype", "key", "location", "numel")

    def __init__(self, key: str, dtype: str, numel: int, location: str = "cpu") -> None:
        self.key = key
        self.dtype = dtype
        self.numel = numel
        self.location = location

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_BITS.get(self.dtype, 8) // 8


class TensorRef:
    """A strided view on a storage: `offset` and `stride` count items. `storage` is None for a tensor without data
    (meta)."""

    __slots__ = ("dtype", "kind", "local", "local_at", "offset", "placement", "shape", "storage", "stride")

    def __init__(
        self, storage: Storage | None, dtype: str, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.offset = offset
        self.shape = shape
        self.stride = stride
        self.kind = "tensor"
        self.local: TensorRef | None = None  # of a DTensor: this rank's part
        self.local_at: tuple[int, ...] | None = None  # of a ShardedTensor: where that part begins
        self.placement: Any = None

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BITS.get(self.dtype, 0) // 8

    @property
    def extent(self) -> int:
        """Items of the storage that the view reaches, counted from the storage's start (exclusive)."""
        if not self.numel:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return self.numel == 0
            step *= size
        return True

    def inert_build(self, state: Any) -> None:
        """Attributes of a tensor subclass: DTensor and ShardedTensor keep this rank's part in them."""
        parts = state if isinstance(state, tuple) else (state,)
        for attributes in parts:
            if not isinstance(attributes, dict):
                self._take_shards(attributes)  # ShardedTensor's own state is a tuple that begins with its shards
                continue
            if isinstance(attributes.get("_local_tensor"), TensorRef):
                self.local = attributes["_local_tensor"]
                self.placement = attributes.get("_spec")
            self._take_shards(attributes.get("_local_shards"))

    def _take_shards(self, shards: Any) -> None:
        first = shards[0] if isinstance(shards, list) and len(shards) == 1 else None
        if isinstance(first, Record) and isinstance(first.fields.get("tensor"), TensorRef):
            metadata = first.fields.get("metadata")
            at = metadata.fields.get("shard_offsets") if isinstance(metadata, Record) else None
            if isinstance(at, (list, tuple)) and len(at) == len(self.shape) and all(type(n) is int for n in at):
                self.local, self.local_at = first.fields["tensor"], tuple(at)

    def __repr__(self) -> str:
        return f"<{self.dtype} tensor {self.shape!r:.80}>"


def storage_of(pid: Any) -> Storage:
    """Persistent ids of torch.save: ('storage', type, key, location, numel[, view]); legacy files end with view
    metadata."""
    tag, kind, key, location, numel = pid[:5]
    if tag != "storage" or not isinstance(key, (str, int)) or type(numel) is not int or numel < 0:
        raise ValueError
    name = kind.name if isinstance(kind, Global) else ""
    if name not in _STORAGE_DTYPES or not isinstance(kind, Global) or not kind.module.startswith("torch"):
        raise ValueError
    return Storage(str(key), _STORAGE_DTYPES[name], numel, str(location))


def dtype_name(node: Any) -> str | None:
    """ "float32" for the global torch.float32."""
    if isinstance(node, Global) and node.module == "torch" and node.name in ITEM_BITS:
        return node.name
    return None


def _sizes(values: Any) -> tuple[int, ...]:
    if (
        not isinstance(values, (tuple, list))
        or len(values) > _MAX_DIMS
        or not all(type(n) is int and n >= 0 for n in values)
    ):
        raise Malformed(f"a tensor's sizes are {values!r:.60}")
    return tuple(values)


def _tensor_v2(storage: Storage, offset: int, size: Any, stride: Any, *_: Any) -> TensorRef:
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise Malformed("a tensor without a storage or with a negative offset")
    return TensorRef(storage, storage.dtype, offset, _sizes(size), _strides(stride, size))


def _strides(stride: Any, size: Any) -> tuple[int, ...]:
    made = _sizes(stride)
    if len(made) != len(size):
        raise Malformed(f"a tensor has {len(size)} sizes and {len(made)} strides")
    return made


def _tensor_v3(
    storage: Storage, offset: int, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> TensorRef:
    made = _tensor_v2(storage, offset, size, stride)
    made.dtype = dtype_name(dtype) or "?"
    return made


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _from_type(func: Any, kind: Any, args: Any, state: Any) -> Any:
    """_rebuild_from_type_v2(func, type, args, state): the inner rebuild, then the subclass's attributes."""
    meaning = TORCH.get(func.path) if isinstance(func, Global) else None
    inner = meaning(*args) if meaning is not None else Call(func, args)
    if isinstance(inner, TensorRef):
        inner.kind = kind.name if isinstance(kind, Global) else "?"
        inner.inert_build(state)
    elif isinstance(inner, Call):
        inner.state = state
    return inner


def _wrapper_subclass(kind: Any, dtype: Any, size: Any, stride: Any, offset: Any, *_: Any) -> TensorRef:
    """A tensor whose data live in attributes (DTensor, ShardedTensor); the stride is not about stored bytes."""
    shape = _sizes(size)
    made = TensorRef(None, dtype_name(dtype) or "?", 0, shape, (0,) * len(shape))
    made.kind = kind.name if isinstance(kind, Global) else "?"
    return made


def _meta_tensor(dtype: Any, size: Any, stride: Any, *_: Any) -> TensorRef:
    shape = _sizes(size)
    return TensorRef(None, dtype_name(dtype) or "?", 0, shape, (0,) * len(shape))


def _quantized(storage: Storage, offset: int, size: Any, stride: Any, *_: Any) -> TensorRef:
    return _tensor_v2(storage, offset, size, stride)


class Generator:
    """A torch.Generator: its state bytes live in an attached tensor."""

    __slots__ = ("state",)

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def inert_build(self, state: Any) -> None:
        self.state = state


def _size(*args: Any) -> tuple[int, ...]:
    values = args[0] if args else ()
    if not isinstance(values, (tuple, list)) or len(values) > _MAX_DIMS:
        raise TypeError
    return tuple(values)


def _device(*args: Any) -> str:
    return ":".join(str(a) for a in args if isinstance(a, (str, int)))[:40]


def _text_of(*args: Any) -> str:
    """An enum or layout rebuilt from its printable value."""
    if len(args) == 1 and isinstance(args[0], (str, int)):
        return str(args[0])
    raise TypeError


def _record(kind: str) -> Meaning:
    def build(*args: Any) -> Record:
        made = Record(kind)
        made.fields.update({f"arg{i}": a for i, a in enumerate(args)})
        return made

    return build


_SHARD = "torch.distributed._shard"
_CKPT = "torch.distributed.checkpoint"
_RECORDS = (
    f"{_SHARD}.metadata.ShardMetadata",
    f"{_SHARD}.sharded_tensor.metadata.ShardedTensorMetadata",
    f"{_SHARD}.sharded_tensor.metadata.TensorProperties",
    f"{_SHARD}.sharded_tensor.shard.Shard",
    f"{_SHARD}.sharded_tensor.api.ShardedTensor",
    f"{_SHARD}.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
    f"{_SHARD}.sharding_spec.api.EnumerableShardingSpec",
    "torch.distributed.remote_device._remote_device",
    *(
        f"torch.distributed.{p}.{m}"
        for p in ("tensor", "_tensor")
        for m in (
            "_dtensor_spec.DTensorSpec",
            "_dtensor_spec.TensorMeta",
            "placement_types.DTensorSpec",
            "placement_types.TensorMeta",
            "placement_types.Shard",
            "placement_types.Replicate",
            "placement_types.Partial",
            "placement_types._StridedShard",
        )
    ),
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed._mesh_layout._MeshLayout",
    *(f"{_CKPT}.planner.{m}" for m in ("SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData")),
    f"{_CKPT}.metadata.TensorProperties",
    f"{_CKPT}.metadata.StorageMeta",
    f"{_CKPT}.metadata.Metadata",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
)

TORCH: Mapping[str, Meaning] = {
    **PLAIN,
    **{path: _record(path.rsplit(".", 1)[1]) for path in _RECORDS},
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._utils._rebuild_qtensor": _quantized,
    "torch._utils._rebuild_meta_tensor_no_storage": _meta_tensor,
    "torch._utils._rebuild_wrapper_subclass": _wrapper_subclass,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
    "torch.device": _device,
    "torch.serialization._get_layout": _text_of,
    "torch.Generator": Generator,
    "torch._C.Generator": Generator,
}
