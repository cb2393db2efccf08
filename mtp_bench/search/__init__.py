"""Which tree is best: sources of node values, exact search, Optuna beside it, evaluation and held-out figures."""

from mtp_bench.search.evaluate import Evaluation, evaluate, evaluate_all
from mtp_bench.search.exact.curve import SPEED, TOKENS, Band, Curve, CurvePoint, NodeMargin
from mtp_bench.search.exact.growth import Growth, grow, grow_all
from mtp_bench.search.exact.search import ExactResult, exact_search
from mtp_bench.search.robustness.held_out import HeldOut, choose_on_half
from mtp_bench.search.studies.optuna_search import OptunaResult, OptunaTrial, optuna_search
from mtp_bench.search.values.sources import MarginalSource, Source, expected_tokens_per_step
from mtp_bench.search.values.trie import TrieSource

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
