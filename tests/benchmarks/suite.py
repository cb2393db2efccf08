"""Everything about one engine on this machine, in one command: about an hour on two cores.

    python tests/benchmarks/suite.py --out results/compare-cpu

1. Profiles and optimizes the reference model with its shipped Medusa heads, EAGLE-1 and EAGLE-3 draft.
2. Compares them with this engine at N = 0, Hugging Face ``generate`` with its default and its static cache, prompt
   lookup, and vLLM's CPU build where ``--vllm`` names a Python that has it: interleaved, paired, one table.
3. Decodes in batches: throughput against batch size.
4. Measures how a step's cost grows with rows, contexts and batches.

Each stage is a command of ``mtp-bench``; a stage whose results are there is not run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mtp_bench.cli import run


def main(arguments: list[str] | None = None) -> int:
    """Run the stages that are missing; the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--heads", default="medusa,eagle1,eagle3")
    parser.add_argument("--limit", type=int, default=108, help="prompts profiled")
    parser.add_argument("--decoded", type=int, default=18, help="prompts decoded by every arm")
    parser.add_argument("--vllm", help="a Python whose environment has vLLM's CPU build")
    parser.add_argument("--batch", default="1,2,4,8")
    parser.add_argument("--stages", default="profile,compare,batch,scale")
    options = parser.parse_args(arguments)
    for done, command in _stages(options):
        if done.exists():
            print(f"there already: {done}")
            continue
        print("mtp-bench " + " ".join(command), flush=True)
        if code := run(command):
            return code
    return 0


def _stages(options: argparse.Namespace) -> list[tuple[Path, list[str]]]:
    """(what it writes last, command) in order."""
    out, engine = options.out, ["--engine", options.engine]
    model = [*engine, "--dtype", options.dtype]
    heads = options.heads.split(",")
    runs = [out / name for name in heads]
    stages: dict[str, list[tuple[Path, list[str]]]] = {name: [] for name in ("profile", "compare", "batch", "scale")}
    for name, path in zip(heads, runs, strict=True):
        profile = ["profile", "--heads", f"smollm2-135m-{name}", *model, "--limit", str(options.limit)]
        stages["profile"] += [
            (path / "cost.csv", [*profile, "--out", str(path)]),
            (path / "topology.json", ["optimize-tree", "--profile", str(path), "--budget", "63"]),
        ]
    compare = ["compare", *map(str, runs), "--hf-static", "--limit", str(options.decoded), "--repeats", "1"]
    compare += ["--vllm", options.vllm] if options.vllm else []
    stages["compare"] = [(out / "compare" / "compare.csv", [*compare, "--out", str(out / "compare")])]
    bench = ["bench", "--profile", str(runs[0]), "--batch", options.batch, "--limit", "32", "--repeats", "1"]
    stages["batch"] = [(runs[0] / "throughput.csv", bench)]
    scale = ["measure-cost", *model, "--rounds", "5", "--max-minutes", "5", "--context", "128", "--context", "1024"]
    # Not all of them at once: 512 rows for each of 64 requests would take minutes a pass.
    stages["scale"] = [
        (out / "scale-rows" / "cost.csv", [*scale, "--context", "4096", "--max-rows", "512", "--batch", "1"]),
        (out / "scale-batches" / "cost.csv", [*scale, "--max-rows", "8", "--batch", "1,8,64"]),
    ]
    for done, command in stages["scale"]:
        command += ["--out", str(done.parent)]
    return [stage for name in options.stages.split(",") for stage in stages[name]]


if __name__ == "__main__":
    sys.exit(main())
