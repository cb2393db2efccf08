"""Which tree is best: sources of node values, exact search, Optuna beside it, evaluation and held-out figures."""

from mtp_bench.search.curve import SPEED, TOKENS, Band, Curve, CurvePoint, NodeMargin
from mtp_bench.search.evaluate import Evaluation, evaluate, evaluate_all
from mtp_bench.search.exact import ExactResult, exact_search
from mtp_bench.search.growth import Growth, grow, grow_all
from mtp_bench.search.held_out import HeldOut, choose_on_half
from mtp_bench.search.optuna_search import OptunaResult, OptunaTrial, optuna_search
from mtp_bench.search.sources import MarginalSource, Source, expected_tokens_per_step
from mtp_bench.search.trie import TrieSource

__all__ = [
    "SPEED",
    "TOKENS",
    "Band",
    "Curve",
    "CurvePoint",
    "Evaluation",
    "ExactResult",
    "Growth",
    "HeldOut",
    "MarginalSource",
    "NodeMargin",
    "OptunaResult",
    "OptunaTrial",
    "Source",
    "TrieSource",
    "choose_on_half",
    "evaluate",
    "evaluate_all",
    "exact_search",
    "expected_tokens_per_step",
    "grow",
    "grow_all",
    "optuna_search",
]
