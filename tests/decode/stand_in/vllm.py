"""In place of vLLM, in the worker's process: what the worker uses of it, reciting answers from a file.

``STAND_IN_ANSWERS`` names a JSON list of [prompt, tokens]; ``STAND_IN_DIES_AT`` the request at which to die. It is as
talkative on stdout as the real one, and drafts as well as can be when told to look up prompts.
"""

import json
import os
import sys
from types import ModuleType, SimpleNamespace

__version__ = "0.0.stand-in"
# torch takes seconds to import, and nothing here computes.
torch = sys.modules["torch"] = ModuleType("torch")
torch.__dict__.update(__version__="0.0+stand.in", get_num_threads=lambda: 3)
print("a word of welcome\n{}")


class SamplingParams:
    def __init__(
        self, *, temperature: float, max_tokens: int, stop_token_ids: list[int], ignore_eos: bool, detokenize: bool
    ) -> None:
        assert temperature == 0.0
        assert ignore_eos
        assert not detokenize
        self.max_tokens = max_tokens
        self.stop_token_ids = stop_token_ids


class LLM:
    def __init__(self, **settings: object) -> None:
        os.write(1, b'{"from": "below Python"}\n')
        assert settings["enable_prefix_caching"] is False
        assert settings["max_num_seqs"] == 1
        self.llm_engine = Engine(settings)


class Engine:
    def __init__(self, settings: dict) -> None:
        speculation = settings.get("speculative_config") or {}
        self.drafted = speculation.get("num_speculative_tokens", 0)
        with open(os.environ["STAND_IN_ANSWERS"], encoding="utf-8") as stream:
            self.answers = {tuple(prompt): tokens for prompt, tokens in json.load(stream)}
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(dtype="torch." + settings["dtype"], max_model_len=settings["max_model_len"]),
            cache_config=SimpleNamespace(enable_prefix_caching=False),
            compilation_config=SimpleNamespace(mode="none"),
        )
        self.requests = 0
        self.left: list[int] = []
        self.emitted: list[int] = []

    def add_request(self, request_id: str, prompt: dict, params: SamplingParams) -> None:
        if str(self.requests) == os.environ.get("STAND_IN_DIES_AT"):
            raise MemoryError("no room for the cache")
        self.requests += 1
        answer = self.answers[tuple(prompt["prompt_token_ids"])][: params.max_tokens]
        ends = [index + 1 for index, token in enumerate(answer) if token in params.stop_token_ids]
        self.left = answer[: ends[0]] if ends else list(answer)
        self.emitted = []

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def step(self) -> list[SimpleNamespace]:
        print("INFO: a step", file=sys.stdout)
        amount = 1 + self.drafted if self.emitted else 1
        self.emitted += self.left[:amount]
        self.left = self.left[amount:]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(self.emitted))])]
