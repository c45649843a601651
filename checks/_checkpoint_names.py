"""Which Python names may stand in a checkpoint's pickles.

An exact list of harmless names, then kinds: standard-library and torch names outside the list are refused, classes
of other
packages are only named (loading needs their code), functions of other packages are refused.
"""

from __future__ import annotations

import sys

from ddaudit.api import NameSeen

_BUILTINS = frozenset(
    (
        "set",
        "frozenset",
        "list",
        "dict",
        "tuple",
        "int",
        "float",
        "complex",
        "bytes",
        "bytearray",
        "str",
        "bool",
        "slice",
        "range",
        "object",
        "getattr",
        "Ellipsis",
        "NotImplemented",
    )
)
_TORCH_CLASSES = (
    "torch.nn.", "torch.optim.", "torch.distributed.", "torch.amp.", "torch.cuda.amp.", "torchvision.", "torch.ao.",
    "torch.utils.data.", "torch._C._", "torch.fx.",
)  # fmt: skip
_HARMLESS = {
    "numpy.ndarray", "numpy.dtype", "numpy.random._pickle.__randomstate_ctor",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pickle.__generator_ctor", "numpy.random._mt19937.MT19937", "numpy.random._pcg64.PCG64",
    "torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer", "torch.ScriptObject",
    "torch._utils._rebuild_device_tensor_from_numpy", "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_sparse_csr_tensor",
    "torch._utils._rebuild_nested_tensor",
    "torch.storage._load_from_bytes", "torch.storage.TypedStorage", "torch.storage.UntypedStorage", "torch.Generator",
    "torch._C._distributed_c10d.ReduceOp", "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING", "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.distributed.checkpoint.metadata.Metadata", "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex", "torch.distributed.checkpoint.filesystem._StorageInfo",
    "random.Random", "datetime.datetime", "datetime.timedelta", "datetime.timezone", "datetime.date", "uuid.UUID",
    "decimal.Decimal", "fractions.Fraction", "enum.Enum", "functools.partial_", "types.SimpleNamespace", "re._compile",
    "collections.OrderedDict", "collections.defaultdict", "operator.attrgetter_", "copyreg._reconstructor",
    "copy_reg._reconstructor", "copyreg.__newobj__", "io.BytesIO", "array._array_reconstructor",
    "torch.jit._pickle.build_intlist",
    "torch._tensor._rebuild_from_type_v2", "torch.torch_version.TorchVersion", "string.Template_",
}  # fmt: skip
_PLAIN_MODULES = ("numpy.dtypes.",)
_STDLIB = frozenset(sys.stdlib_module_names) | frozenset(
    (
        "__builtin__",
        "copy_reg",
        "nt",
        "commands",
        "cPickle",
        "_io",
        "pip",
        "setuptools",
        "pkg_resources",
        "distutils",
        "numpy",
        "torch",
    )
)
_ENUM_GETATTR = {"__builtin__.getattr", "builtins.getattr"}


def _is_torch_value(path: str) -> bool:
    """torch.float32, torch.FloatStorage, torch.strided: attributes of torch that are types or constants."""
    name = path.removeprefix("torch.")
    kinds = (
        "float",
        "int",
        "uint",
        "bfloat16",
        "complex",
        "bool",
        "half",
        "double",
        "long",
        "short",
        "qint",
        "quint",
        "bits",
    )
    layouts = ("strided", "sparse_coo", "sparse_csr", "preserve_format", "contiguous_format", "channels_last")
    return (
        path.startswith("torch.")
        and "." not in name
        and (name.endswith("Storage") or name.startswith(kinds) or name in layouts)
    )


def _is_class(path: str) -> bool:
    """The last word looks like a class: CamelCase, not a function, no call chain through underscored attributes."""
    last = path.rsplit(".", 1)[-1].lstrip("_")
    return last[:1].isupper() and not path.endswith("__")


def judge_name(seen: NameSeen) -> tuple[str | None, str]:
    """(kind of fault or None, text) for one name."""
    path = seen.path
    if path == "?" or path.startswith("?"):
        return "security.computed-call", f"{seen.file}: the pickle calls something that it computes itself"
    if seen.known or path in _HARMLESS or _is_torch_value(path) or path.startswith(_PLAIN_MODULES):
        return None, ""
    module, _, name = path.partition(".")
    if module in ("builtins", "__builtin__"):
        return (None, "") if name in _BUILTINS else ("security.code", f"{seen.file}: the pickle names {path}")
    if module in ("copyreg", "copy_reg") and name.startswith("extension"):
        return "security.code", f"{seen.file}: the pickle uses an extension code, whose meaning is not in the file"
    if path.startswith(_TORCH_CLASSES) and _is_class(path):
        return None if _known_torch(path) else "security.unknown-object", f"{seen.file}: holds objects of {path}"
    if module in _STDLIB:
        return "security.code", f"{seen.file}: the pickle names {path}; loading it would import and may call that"
    if _is_class(path):
        return (None, "") if module in _FRAMEWORKS else (
            "security.unknown-object", f"{seen.file}: holds an object of {path}: loading needs that code")  # fmt: skip
    return "security.code", f"{seen.file}: the pickle {'calls' if seen.called else 'names'} {path}, a function"


def _known_torch(path: str) -> bool:
    return path.startswith(("torch.nn.", "torch.optim.", "torch.distributed.", "torch._C._distributed_c10d."))


#: Packages whose classes belong in checkpoints that these frameworks write.
_FRAMEWORKS = {
    "accelerate", "transformers", "deepspeed", "megatron", "lightning", "pytorch_lightning", "lightning_fabric",
    "torchtitan",
    "composer", "nemo", "torchdata", "peft", "verl", "omegaconf", "torchmetrics", "bitsandbytes", "apex", "fairscale",
    "transformer_engine", "torchao", "streaming", "hydra", "nvidia_resiliency_ext", "optree",
}  # fmt: skip
