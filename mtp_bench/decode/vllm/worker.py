"""vLLM decoding prompts for a bench of ours, in the Python that has it: ``PYTHON worker.py SETTINGS``.

Needs the standard library and vLLM alone: vLLM pins a torch of its own, so it lives in another environment than ours.
SETTINGS is a JSON object: ``client.VllmSettings``, and ``replies``, the file descriptor that replies go to, since vLLM
and what it loads print to stdout as they like. Requests come on stdin, one JSON object a line
(``{"prompt": [...], "max_new_tokens": n}``); so do replies, the first when the model is loaded. Ends with stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PREPARED = "MTP_BENCH_VLLM_PREPARED"
# As vLLM's CPU build sets OpenMP for the processes that it starts itself; here it runs in this one.
SPIN_MS = "5"


def main() -> None:
    """Load the model, then answer until stdin ends."""
    settings = json.loads(sys.argv[1])
    if PREPARED not in os.environ:
        # OpenMP reads its settings, and the loader what to preload, only when a program starts.
        environment = os.environ | prepared(settings) | {PREPARED: "1"}
        os.execve(sys.executable, [sys.executable, os.path.abspath(__file__), sys.argv[1]], environment)
    # Nothing that is started from here on may keep this open: its end is how we are known to have ended.
    os.set_inheritable(settings["replies"], False)
    replies = os.fdopen(settings["replies"], "w", encoding="utf-8")
    ours = {name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "OMP_", "KMP_", "LD_P"))}
    # Modules beside this file must not hide others of the same name.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    engine = load(settings)
    reply(replies, facts(engine, settings, ours))
    for number, line in enumerate(sys.stdin):
        reply(replies, decode(engine, number, json.loads(line), settings["end_tokens"]))


def reply(stream: Any, document: dict[str, Any]) -> None:
    """Write one line and send it off."""
    stream.write(json.dumps(document) + "\n")
    stream.flush()


def prepared(settings: dict[str, Any]) -> dict[str, str]:
    """Environment variables for as many threads as the other arms have, on the same processors; the user's own stay."""
    processors = ",".join(map(str, settings["processors"]))
    ours = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(len(settings["processors"]))}
    defaults = {
        "VLLM_CPU_OMP_THREADS_BIND": processors,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{processors}]",
        "KMP_BLOCKTIME": SPIN_MS,
        "KMP_TPAUSE": "0",
    }
    if os.path.isdir(settings["model"]):
        defaults["HF_HUB_OFFLINE"] = "1"
    # vLLM asks for it to be preloaded, and brings it.
    intel_openmp = os.path.join(sys.prefix, "lib", "libiomp5.so")
    if os.path.exists(intel_openmp):
        ours["LD_PRELOAD"] = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), intel_openmp)))
    return {name: value for name, value in defaults.items() if name not in os.environ} | ours


def load(settings: dict[str, Any]) -> Any:
    """vLLM's engine with its defaults, but what other arms lack: prompts used again, many requests at once."""
    from vllm import LLM

    speculation = {}
    if settings["lookup_tokens"]:
        speculation["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": settings["lookup_tokens"],
            "prompt_lookup_max": settings["lookup_ngram"],
            "prompt_lookup_min": 1,
        }
    return LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_length"],
        max_num_seqs=1,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        **speculation,
    ).llm_engine


def facts(engine: Any, settings: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """What decodes here."""
    import torch
    import vllm

    config = engine.vllm_config
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "threads": torch.get_num_threads(),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "max_length": config.model_config.max_model_len,
        "compilation": str(getattr(config.compilation_config, "mode", None)),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "lookup_tokens": settings["lookup_tokens"],
        "environment": {name: _without_folders(value) for name, value in sorted(environment.items())},
    }


def _without_folders(value: str) -> str:
    return ":".join(map(os.path.basename, value.split(":")))


def decode(engine: Any, number: int, request: dict[str, Any], end_tokens: list[int]) -> dict[str, Any]:
    """Greedy decoding to an end token or the limit.

    Returns:
        ``tokens``; ``lengths``, how many there were after each pass that gave some; ``prefill_s`` and ``decode_s``,
        seconds until the first such pass was done, and from then to the last.
    """
    from vllm import SamplingParams

    greedy = SamplingParams(
        temperature=0.0,
        max_tokens=request["max_new_tokens"],
        stop_token_ids=end_tokens,
        ignore_eos=True,
        detokenize=False,
    )
    times, lengths, tokens = [], [], []
    start = time.perf_counter()
    engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, greedy)
    while engine.has_unfinished_requests():
        for output in engine.step():
            times.append(time.perf_counter())
            tokens = output.outputs[0].token_ids
            lengths.append(len(tokens))
    return {
        "tokens": list(tokens),
        "lengths": lengths,
        "prefill_s": times[0] - start,
        "decode_s": times[-1] - times[0],
    }


if __name__ == "__main__":
    main()
