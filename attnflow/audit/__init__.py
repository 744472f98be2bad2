"""Is attention explanation, here? The experiments of the debate, each of them one call on the user's own model.

``correlation``, ``permutation`` and ``adversary`` take a model, its tokenizer and texts (Jain & Wallace 2019).
``uniform``, ``seeds``, ``guide`` and ``imposter`` train (Wiegreffe & Pinter 2019): they take a factory of models and
:class:`Splits`. ``LSTMClassifier`` is the papers' own model. :func:`run` runs several of them on one model and data,
and :func:`write_report` puts their findings into one report.
"""

from typing import TYPE_CHECKING

from attnflow.audit.adversary import adversary
from attnflow.audit.correlation import correlation
from attnflow.audit.finding import Finding
from attnflow.audit.guide import guide
from attnflow.audit.imposter import imposter
from attnflow.audit.outcomes import AttentionRow
from attnflow.audit.permutation import permutation
from attnflow.audit.registry import experiment, experiments
from attnflow.audit.report import write_report
from attnflow.audit.runner import run
from attnflow.audit.seeds import seeds
from attnflow.audit.splits import Splits
from attnflow.audit.training import Recipe, Trained, fit, trained
from attnflow.audit.uniform import uniform
from attnflow.lazy import on_first_use

__all__ = [
    "AttentionRow",
    "Finding",
    "LSTMClassifier",
    "LSTMConfig",
    "Recipe",
    "Splits",
    "Trained",
    "adversary",
    "correlation",
    "experiment",
    "experiments",
    "fit",
    "guide",
    "imposter",
    "permutation",
    "run",
    "seeds",
    "trained",
    "uniform",
    "write_report",
]

if TYPE_CHECKING:
    from attnflow.models.lstm import LSTMClassifier, LSTMConfig
else:
    # transformers' code of models takes longer to import than all of the experiments.
    __getattr__ = on_first_use(__name__, LSTMClassifier="attnflow.models.lstm", LSTMConfig="attnflow.models.lstm")
