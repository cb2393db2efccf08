"""Merging the shards of a profile: the same files as one unsharded profile gives."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mtp_bench.errors import InputError
from mtp_bench.files import write_text
from mtp_bench.runs import RunFolder
from mtp_bench.trace.acceptance import AcceptanceTable
from mtp_bench.trace.ranks import RankTrace, merge_traces


def merge_runs(shards: Sequence[RunFolder], out: RunFolder) -> RankTrace:
    """Merge profiles made with ``--shard i/n`` into ``out``, in the order of the prompts.

    Costs are the first shard's that has any.

    Raises:
        InputError: shards of different profiles, a shard missing or given twice.
    """
    manifests = [shard.read_manifest() for shard in shards]
    _check_same_profile(shards, manifests)
    order = {name: place for place, name in enumerate(manifests[0]["prompts"]["ids"])}
    merged = merge_traces([RankTrace.load(shard.trace) for shard in shards])

    def place(name: str) -> tuple[int, int]:
        if name in order:
            return order[name], 1
        prompt, _, turn = name.rpartition("/")
        return order[prompt], int(turn)

    trace = merged.select(sorted(range(merged.num_prompts), key=lambda index: place(merged.prompt_ids[index])))
    trace.save(out.trace)
    AcceptanceTable.from_trace(trace, seed=manifests[0]["options"]["seed"]).to_csv(out.acceptance)
    _merge_text(shards, out)
    measured = [(shard, manifest) for shard, manifest in zip(shards, manifests, strict=True) if shard.cost.exists()]
    about_costs = {}
    for shard, manifest in measured[:1]:
        write_text(out.cost, shard.cost.read_text(encoding="utf-8"))
        about_costs = {name: manifest.get(name) for name in ("sweep", "device_limits", "environment")}
    text = {
        name: sum(manifest["text"][name] for manifest in manifests)
        for name in ("answers", "tokens", "answers_cut_at_a_loop", "answers_dropped", "tokens_dropped")
    }
    means = [
        (facts["mean_context"], facts["answers"] - facts["answers_dropped"])
        for facts in (manifest["text"] for manifest in manifests)
    ]
    text["mean_context"] = round(sum(mean * count for mean, count in means) / sum(count for _, count in means), 1)
    out.write_manifest(
        {
            **{key: value for key, value in manifests[0].items() if key not in ("schema", "version")},
            **about_costs,
            "options": manifests[0]["options"] | {"shard": [0, 1]},
            "text": text | {"trace_sha256": trace.digest},
            "merged_from": [manifest["key"] for manifest in manifests],
        }
    )
    return trace


def _check_same_profile(shards: Sequence[RunFolder], manifests: Sequence[dict]) -> None:  # type: ignore[type-arg]
    def identity(manifest: dict) -> str:  # type: ignore[type-arg]
        options = {key: value for key, value in manifest["options"].items() if key != "shard"}
        parts = [manifest["model"]["sha256"], manifest["model"]["dtype"], manifest["heads"]["hash"]]
        return json.dumps([*parts, manifest["prompts"]["sha256"], options], sort_keys=True)

    for shard, manifest in zip(shards, manifests, strict=True):
        if identity(manifest) != identity(manifests[0]):
            raise InputError(
                "a shard of another profile", where=str(shard.path), fix="merge shards of one profile command only"
            )
    parts = sorted(tuple(manifest["options"]["shard"]) for manifest in manifests)
    count = parts[0][1]
    if parts != [(index, count) for index in range(count)]:
        given = ", ".join(f"{index}/{count}" for index, count in parts)
        raise InputError(
            f"not every shard once: {given}", where="merge", fix=f"give each of 0/{count}..{count - 1}/{count}"
        )


def _merge_text(shards: Sequence[RunFolder], out: RunFolder) -> None:
    header, lines = "", []
    for shard in shards:
        first, *rest = shard.answers.read_text(encoding="utf-8").splitlines()
        header = first
        lines += rest
    write_text(out.answers, "\n".join([header, *lines]) + "\n")
