"""All defects of a topology file: our JSON or a bare list of paths.

Our JSON repeats facts that follow from the paths (id, number of nodes, parents, ...) so that a reader in any language
can use them; a file in which they disagree was edited or damaged, and is refused rather than half believed.
"""

from __future__ import annotations

from typing import Any

from mtp_bench.errors import InputError
from mtp_bench.topology.dynamic import DynamicTree
from mtp_bench.topology.tree import StaticTree, chain
from mtp_bench.topology.validate import MAX_DEPTH, Defect, errors_of, find_path_defects

Topology = StaticTree | DynamicTree
"""What is verified per step."""

FORMAT = "mtp-bench/topology"
MAJOR, MINOR = 1, 0
METHODS = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "mtp", "draft_model")
READABLE_KINDS = ("static_tree", "chain", "dynamic_tree")
LATER_KINDS = ("batch_schedule",)
METADATA = ("expected", "profile", "limits", "source")
KEYS = ("format", "version", "id", "method", "kind", "tree", "chain", "dynamic", "batch_schedule", *METADATA)
DERIVED = ("num_nodes", "depth", "parents", "level_widths", "max_rank", "uniform_levels")
RESAVE = "to make a file from edited paths, import the bare list: mtp-bench import FILE --out NEW.json"


def find_defects(
    value: object, *, top_k: int | None = None, heads: int | None = None, complete_prefixes: bool = False
) -> list[Defect]:
    """List what is wrong with the content of a topology file (parsed JSON); see :func:`find_path_defects`."""
    limits: dict[str, Any] = {"top_k": top_k, "heads": heads, "complete_prefixes": complete_prefixes}
    if not isinstance(value, dict):
        return find_path_defects(value, **limits)
    unreadable = _format_defect(value) or _kind_defect(value)
    if unreadable is not None:
        return [unreadable]
    defects = _header_defects(value)
    if value["kind"] == "chain":
        return defects + _chain_defects(value, top_k, heads)
    if value["kind"] == "dynamic_tree":
        return defects + _dynamic_defects(value)
    tree = value.get("tree")
    if not isinstance(tree, dict) or "paths" not in tree:
        return [*defects, Defect("/tree", "missing-key", "a static_tree needs an object tree with paths")]
    defects += [_unknown("/tree", key) for key in tree if key not in ("paths", *DERIVED)]
    path_defects = find_path_defects(tree["paths"], pointer="/tree/paths", **limits)
    defects += path_defects
    structure = find_path_defects(tree["paths"], complete_prefixes=complete_prefixes)
    if not errors_of(structure):
        built = StaticTree.from_paths(tree["paths"], complete_prefixes=complete_prefixes)
        if not complete_prefixes or built.num_nodes == len(tree["paths"]):
            defects += _derived_defects(tree, built) + _id_defects(value, built)
    return defects


def topology_of(value: object, *, complete_prefixes: bool = False) -> Topology:
    """The topology of a value in which :func:`find_defects` found no error."""
    if isinstance(value, dict):
        if value["kind"] == "dynamic_tree":
            return DynamicTree(**value["dynamic"])
        if value["kind"] == "chain":
            return chain(value["chain"]["num_tokens"])
        value = value["tree"]["paths"]
    assert isinstance(value, (list, tuple))
    return StaticTree.from_paths(value, complete_prefixes=complete_prefixes)


def derived_facts(tree: StaticTree) -> dict[str, Any]:
    """The facts that the file repeats, in the order in which they are written."""
    return {
        "parents": tree.parents.tolist(),
        "num_nodes": tree.num_nodes,
        "depth": tree.depth,
        "level_widths": list(tree.level_widths),
        "max_rank": tree.max_rank,
        "uniform_levels": tree.uniform_levels,
    }


def _format_defect(value: dict[str, Any]) -> Defect | None:
    if value.get("format") != FORMAT:
        message = f"not a topology of this program (format {FORMAT!r} expected)"
        fix = "give a bare list of paths, or a file written by mtp-bench"
        return Defect("/format", "format", message, fix=fix)
    version = value.get("version")
    major, dot, minor = version.partition(".") if isinstance(version, str) else ("", "", "")
    if not (dot and major.isdecimal() and minor.isdecimal()) or int(major[:9]) < MAJOR:
        return Defect("/version", "version", f"version {version!r} is damaged ('{MAJOR}.{MINOR}' expected)")
    if int(major[:9]) > MAJOR:
        message = f"version {version} is newer than this program, which reads {MAJOR}.x"
        return Defect("/version", "version", message, fix="update mtp-bench")
    return None


def _kind_defect(value: dict[str, Any]) -> Defect | None:
    kind = value.get("kind")
    if kind in READABLE_KINDS:
        return None
    if kind in LATER_KINDS:
        fix = f"kinds that can be used: {', '.join(READABLE_KINDS)}"
        return Defect("/kind", "kind", f"a {kind} cannot be verified by this version of mtp-bench yet", fix=fix)
    return Defect("/kind", "kind", f"kind {kind!r} is unknown", fix=f"use one of {', '.join(READABLE_KINDS)}")


def _header_defects(value: dict[str, Any]) -> list[Defect]:
    same_version = value["version"] == f"{MAJOR}.{MINOR}"
    # A later minor version may add keys; what this one knows is still valid.
    severity = "error" if same_version else "warning"
    defects = [_unknown("", key, severity) for key in value if key not in KEYS]
    if "method" not in value or value["method"] not in METHODS:
        message = f"method {value.get('method')!r} is unknown"
        defects.append(Defect("/method", "method", message, fix=f"use one of {', '.join(METHODS)}"))
    for key in METADATA:
        if key in value and not isinstance(value[key], dict):
            defects.append(Defect(f"/{key}", "type", f"{key} must be an object"))
    return defects


def _chain_defects(value: dict[str, Any], top_k: int | None, heads: int | None) -> list[Defect]:
    body = value.get("chain")
    length = body.get("num_tokens") if isinstance(body, dict) else None
    if not isinstance(length, int) or isinstance(length, bool) or not 0 <= length <= MAX_DEPTH:
        return [Defect("/chain/num_tokens", "chain", f"num_tokens must be an integer from 0 to {MAX_DEPTH}")]
    tree = chain(length)
    defects = _id_defects(value, tree)
    if heads is not None and length > heads:
        message = f"a chain of {length} tokens but there are {heads} heads"
        defects.append(Defect("/chain/num_tokens", "deeper-than-heads", message, fix="shorten the chain"))
    return defects


def _dynamic_defects(value: dict[str, Any]) -> list[Defect]:
    body = value.get("dynamic")
    if not isinstance(body, dict):
        return [Defect("/dynamic", "missing-key", "a dynamic_tree needs an object dynamic")]
    names = ("depth", "top_k", "num_nodes")
    defects = [Defect(f"/dynamic/{key}", "missing-key", f"{key} is missing") for key in names if key not in body]
    defects += [_unknown("/dynamic", key) for key in body if key not in names]
    if defects:
        return defects
    try:
        return _id_defects(value, DynamicTree(**body))
    except InputError as error:
        return [Defect("/dynamic", "dynamic", error.what, fix=error.fix)]


def _derived_defects(tree: dict[str, Any], built: StaticTree) -> list[Defect]:
    defects = []
    if [list(path) for path in built.paths] != [list(path) for path in tree["paths"]]:
        message = "paths are not in canonical order (length, then lexicographic)"
        defects.append(Defect("/tree/paths", "order", message, "warning"))
    facts = derived_facts(built)
    for key in ("num_nodes", "depth"):
        if key not in tree:
            defects.append(Defect(f"/tree/{key}", "missing-key", f"{key} is missing"))
    for key in DERIVED:
        if key in tree and (tree[key] != facts[key] or type(tree[key]) is not type(facts[key])):
            message = f"{key} does not follow from the paths"
            if not isinstance(facts[key], list):
                message += f": {tree[key]!r} instead of {facts[key]!r}"
            defects.append(Defect(f"/tree/{key}", "inconsistent", message, fix=RESAVE))
    return defects


def _id_defects(value: dict[str, Any], built: Topology) -> list[Defect]:
    if value.get("id") == built.id:
        return []
    message = f"id does not belong to this tree ({built.id} does)"
    return [Defect("/id", "id", message, fix=f"the file was edited after it was written; {RESAVE}")]


def _unknown(pointer: str, key: object, severity: str = "error") -> Defect:
    escaped = str(key).replace("~", "~0").replace("/", "~1")
    level: Any = severity
    return Defect(f"{pointer}/{escaped}", "unknown-key", f"unknown key {str(key)[:40]!r}", level)
