"""Does the optimizer state cover the parameters: names or counts, shapes, dtypes, and no two moments over the same
bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod

from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.optimizer_groups import check_promises, check_rates, check_stateless, declared_ids
from ddaudit.checkpoint.roles import area_of, canonical_weight, group_of, moment_of, moment_word
from ddaudit.evidence.checkpoint import OptimizerFacts

_BUFFERS = (
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "position_ids",
    "inv_freq",
    "rotary_emb",
    "masked_bias",
    "attn.bias",
)
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_FACTORED = ({"exp_avg_sq_row", "exp_avg_sq_col"}, {"row_var", "col_var"}, {"exp_avg_sq"}, {"variance"})
_NAMES_MAX = 20
_HEADS = ("lm_head.weight", "head.weight", "output.weight", "embed_out.weight", "decoder.weight")


def optimizer_facts(made: Checkpoint) -> OptimizerFacts | None:
    """Measures coverage of every copy of the state; anomalies become faults. None without any optimizer tensor."""
    weights: dict[str, list[Tensor]] = defaultdict(list)
    moments: dict[str, list[tuple[Tensor, str, str]]] = defaultdict(list)
    for tensor in made.tensors.values():
        area = area_of(tensor.name, True)
        if area == "optimizer":
            found = moment_of(tensor.name)
            if found is not None and (tensor.numel > 1 or tensor.shape):
                word = moment_word(tensor.name) or "?"
                moments[group_of(tensor.name, "optimizer")].append((tensor, _owner(found[0], tensor.name), word))
        elif area == "model" and _trainable(tensor):
            weights[group_of(tensor.name, "model")].append(tensor)
    check_rates(made)
    if not moments:
        check_stateless(made)
        return None
    total = OptimizerFacts()
    for group, mine in moments.items():
        facts = _one_group(made, mine, weights.get(group) or weights.get("") or [], group)
        total = facts if facts.parameters >= total.parameters else total
    _check_groups_alike(made, moments)
    _check_alias(made, [t for mine in moments.values() for t, _, _ in mine])
    return total.model_copy(update={"master": _has_master(made)})


def _has_master(made: Checkpoint) -> bool:
    """float32 copies of the weights are kept among the optimizer's tensors; they are no moments."""
    names = (t.name for t in made.tensors.values() if area_of(t.name, True) == "optimizer")
    return any(n.rsplit(".", 1)[-1] in ("fp32", "param", "master") for n in names)


def _check_groups_alike(made: Checkpoint, moments: dict[str, list[tuple[Tensor, str, str]]]) -> None:
    """Ranks of one job keep the same kinds of moments."""
    kinds = {group: {word for _, _, word in mine} for group, mine in moments.items() if "rank" in group}
    for group, have in kinds.items():
        for word in sorted(set().union(*kinds.values()) - have):
            some = moments[group][0][0]
            text = f"{group} has no {word}, other ranks do"
            made.fault("optimizer.state-missing", text, file=some.file, tensor=some.name, key=word)


def _owner(found: str, name: str) -> str:
    prefix = group_of(name, "optimizer")
    return found.removeprefix(prefix + ".") if prefix else found


def _trainable(tensor: Tensor) -> bool:
    return tensor.dtype in _FLOATS and not any(b in tensor.name for b in _BUFFERS)


def _one_group(
    made: Checkpoint, moments: list[tuple[Tensor, str, str]], weights: list[Tensor], group: str
) -> OptimizerFacts:
    by_owner: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor, owner, word in moments:
        by_owner[owner][word] = tensor
    by_name = {canonical_weight(t.name.removeprefix(f"{group}.") if group else t.name): t for t in weights}
    if made.param_shapes:
        by_name.update({canonical_weight(n): Tensor(n, "float32", s) for n, s in made.param_shapes.items()})
    named = [o for o in by_owner if o in by_name or canonical_weight(o) in by_name]
    kinds = Counter(w for words in by_owner.values() for w in words)
    _check_kinds(made, by_owner, kinds)
    _check_dtypes(made, by_owner, weights)
    missing: list[str] = []
    by_names = len(named) * 2 > len(by_owner) or bool(made.param_shapes)
    numbered = not by_names and any(_number(o).isdigit() for o in by_owner)
    check_promises(made, by_owner, group, numbered=numbered)
    ids = declared_ids(made, group)
    if by_names:
        missing = _check_named(made, by_owner, by_name)
    elif numbered:
        missing = _check_numbered(made, by_owner, weights, group)
    else:
        _check_shapes(made, by_owner, [])  # flat buffers: only their own lengths can be compared
    return OptimizerFacts(
        parameters=len(weights),
        covered=len(by_owner),
        declared=len(ids) if ids is not None else None,
        missing=tuple(missing[:_NAMES_MAX]),
        moments=tuple(sorted(kinds)),
        weight_dtypes=tuple(sorted({t.dtype for t in weights})),
        moment_dtypes=tuple(sorted({t.dtype for t, _, _ in moments})),
    )


def _number(owner: str) -> str:
    """The number in ``optimizer.state.3`` or ``state.p3``."""
    return owner.rsplit(".", 1)[-1].lstrip("p")


def _check_kinds(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], kinds: Counter[str]) -> None:
    """Most parameters have exp_avg and exp_avg_sq: one that lacks either lost it."""
    usual = {word for word, n in kinds.items() if n * 2 > len(by_owner)}
    for owner, words in by_owner.items():
        # Adafactor factors matrices into rows and columns, and keeps vectors whole.
        whole = {w for form in _FACTORED for w in form if any(other <= set(words) for other in _FACTORED)}
        for word in sorted(usual - set(words) - whole):
            some = next(iter(words.values()))
            made.fault(
                "optimizer.state-missing",
                f"{owner} has no {word}, the other parameters have it",
                file=some.file,
                tensor=owner,
                key=word,
            )


def _check_dtypes(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], weights: list[Tensor]) -> None:
    """All moments of one kind share a dtype, or each has its weight's."""
    kept = Counter((t.dtype, t.shape) for t in weights)
    for word in sorted({w for words in by_owner.values() for w in words}):
        seen = Counter(words[word].dtype for words in by_owner.values() if word in words)
        usual = seen.most_common(1)[0][0]
        mine = Counter((words[word].dtype, words[word].shape) for words in by_owner.values() if word in words)
        for words in by_owner.values() if mine - kept else ():
            tensor = words.get(word)
            if tensor is not None and tensor.dtype != usual:
                text = f"{tensor.name} is {tensor.dtype}, the other {word} are {usual}"
                made.fault(
                    "optimizer.dtype", text, file=tensor.file, tensor=tensor.name, measured=tensor.dtype, limit=usual
                )
        if usual in ("float16",):
            text = f"{word} is stored as float16: squares underflow to 0 and overflow to Inf"
            made.fault("optimizer.half", text, key=word, measured=usual, limit="float32")
    kinds = {
        w: Counter(words[w].dtype for words in by_owner.values() if w in words).most_common(1)[0][0]
        for w in {w for words in by_owner.values() for w in words}
    }
    pair = [kinds.get("exp_avg"), kinds.get("exp_avg_sq")]
    if None not in pair and pair[0] != pair[1] and "float32" in pair:
        text = f"exp_avg is {pair[0]} but exp_avg_sq is {pair[1]}"
        made.fault("optimizer.dtype", text, measured=str(pair[1]), limit=str(pair[0]))


def _check_named(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], by_name: dict[str, Tensor]) -> list[str]:
    """Names say which parameter a moment belongs to: shapes must be equal, and no parameter may be left out."""
    covered = {canonical_weight(o) for o in by_owner}
    for owner, words in by_owner.items():
        weight = by_name.get(owner) or by_name.get(canonical_weight(owner))
        for word, tensor in words.items():
            if weight is not None and word not in ("step",) and not _fits(tensor, weight):
                text = (
                    f"{tensor.name} has shape {list(tensor.view or tensor.shape)}, its parameter {list(weight.shape)}"
                )
                made.fault(
                    "optimizer.shape",
                    text,
                    file=tensor.file,
                    tensor=tensor.name,
                    measured=str(list(tensor.shape)),
                    limit=str(list(weight.shape)),
                )
    lost = sorted(n for n, t in by_name.items() if n not in covered and t.numel)
    aliases = {t.alias for n, t in by_name.items() if n in covered and t.alias}
    lost = [n for n in lost if by_name[n].alias not in aliases or by_name[n].alias is None]
    if lost and _is_tied(by_name, lost, covered):
        made.facts.setdefault("tie_assumed", []).extend(
            (by_name[n].name, by_name[c].name)
            for n in lost
            for c in covered
            if c in by_name and "emb" in c and by_name[c].shape == by_name[n].shape
        )
        lost = []
    _check_homeless(made, by_owner, by_name)
    if lost:
        text = f"{lost[0]} has no optimizer state ({len(lost)} of {len(by_name)} parameters)"
        made.fault("optimizer.uncovered", text, tensor=lost[0], measured=len(lost), limit=0, unit="parameter")
    return lost


def _check_homeless(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], by_name: dict[str, Tensor]) -> None:
    """Moments of a parameter that is not among the weights: the weight was lost, unless it is a tied one."""
    shapes = {t.shape for n, t in by_name.items() if "emb" in n}
    named = [o for o in by_owner if not _number(o).isdigit()]  # a number names a group or a flat buffer
    homeless = [o for o in named if o not in by_name and canonical_weight(o) not in by_name]
    for owner in homeless[:1]:
        some = next(iter(by_owner[owner].values()))
        if owner.endswith(_HEADS) and (some.view or some.shape) in shapes:
            continue
        text = f"{owner} has optimizer state, but no such weight is stored ({len(homeless)} of {len(by_owner)})"
        made.fault(
            "weights.missing",
            text,
            file=some.file,
            tensor=owner,
            measured=len(homeless),
            limit=0,
            unit="parameter",
        )


def _fits(tensor: Tensor, weight: Tensor) -> bool:
    shape = tensor.view or tensor.shape
    if shape == weight.shape or (len(shape) == 1 and tensor.numel == prod(weight.shape)):
        return True  # as it is, or flat
    # Adafactor and SM3 keep one vector for each dimension instead of a full matrix.
    return tensor.numel in weight.shape or tensor.numel == 1


def _is_tied(by_name: dict[str, Tensor], lost: list[str], covered: set[str]) -> bool:
    """An output head of exactly the embedding's shape is usually the embedding itself."""
    shapes = {by_name[c].shape for c in covered if c in by_name and "emb" in c}
    return all(n.endswith(_HEADS) and by_name[n].shape in shapes for n in lost)


def _check_numbered(
    made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], weights: list[Tensor], group: str
) -> list[str]:
    """States are numbered: param_groups say which numbers must be there, weights which shapes may occur."""
    declared = declared_ids(made, group)
    numbers = {_number(o) for o in by_owner}
    lost: list[str] = []
    if declared is not None:
        lost = [str(i) for i in declared if str(i).rsplit(".", 1)[-1].lstrip("p") not in numbers]
        spare = sum(1 for t in weights if not t.numel)
        if len(lost) > spare:
            text = (
                f"param_groups list {len(declared)} parameters, "
                f"{len(lost)} of them have no state (the first: {lost[0]})"
            )
            made.fault("optimizer.uncovered", text, key=lost[0], measured=len(lost), limit=0, unit="parameter")
        plain = [i for i in declared if type(i) is int]
        if plain != sorted(plain):
            at = next(i for i in range(1, len(plain)) if plain[i] < plain[i - 1])
            text = f"param_groups list parameter {plain[at]} behind {plain[at - 1]}; state_dict() numbers them in order"
            made.fault("optimizer.order", text, key=f"{group or 'optimizer'}.param_groups", measured=plain[at])
        strange = sorted(numbers - {str(i) for i in declared})
        if strange and all(s.isdigit() for s in strange):
            text = f"state number {strange[0]} belongs to no parameter group"
            made.fault("optimizer.groups", text, key=strange[0], measured=len(numbers), limit=len(declared))
    _check_shapes(made, by_owner, weights)
    return lost


def _check_shapes(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], weights: list[Tensor]) -> None:
    """Without names, shapes are held against the weights' as a multiset, and against each other within a state."""
    allowed = Counter(t.shape for t in weights)
    sizes = {t.numel for t in weights}
    for owner, words in by_owner.items():
        shapes = {
            w: t.shape for w, t in words.items() if w in ("exp_avg", "exp_avg_sq", "momentum_buffer", "max_exp_avg_sq")
        }
        if len(set(shapes.values())) > 1:
            tensor = words["exp_avg_sq"] if "exp_avg_sq" in words else next(iter(words.values()))
            text = f"state {owner}: " + ", ".join(f"{w} {list(s)}" for w, s in sorted(shapes.items()))
            made.fault("optimizer.shape", text, file=tensor.file, tensor=tensor.name)
    for word in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        have = Counter(words[word].shape for words in by_owner.values() if word in words)
        for shape, count in (have - allowed).items() if weights else ():
            flat = shape not in allowed and ((shape[:1] and shape[0] in sizes) or shape[:1] > (max(sizes, default=0),))
            if len(shape) == 1 and flat:
                continue  # a flat buffer
            tensor = next(w[word] for w in by_owner.values() if word in w and w[word].shape == shape)
            text = (
                f"{tensor.name} has shape {list(shape)}; {allowed.get(shape, 0)} "
                f"parameters have it, {have[shape]} states"
            )
            made.fault(
                "optimizer.shape",
                text,
                file=tensor.file,
                tensor=tensor.name,
                measured=have[shape],
                limit=allowed.get(shape, 0),
            )
            assert count


def _check_alias(made: Checkpoint, tensors: list[Tensor]) -> None:
    """Two moments over the same bytes: the second update would overwrite the first."""
    seen: dict[str, str] = {}
    for tensor in tensors:
        if tensor.alias is None or not tensor.numel:
            continue
        other = seen.setdefault(tensor.alias, tensor.name)
        if other != tensor.name:
            made.fault(
                "optimizer.alias", f"{tensor.name} and {other} are the same bytes", file=tensor.file, tensor=tensor.name
            )
