"""The package's own models in transformers' Auto classes, at no cost to whoever does not load them.

``import attnflow`` must stay fast, and transformers' Auto classes and its code of GPT-2 take longer to import than
the rest of it. So nothing is imported here. When transformers imports its Auto classes, for whatever reason, the model
types are added to them, with stand-ins for the classes that import the real ones when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

AUTO = "transformers.models.auto.configuration_auto"


class Later:
    """Stands for a class: every attribute is the real one's, which is imported when first asked for."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._class = module, name

    def _real(self) -> Any:
        return getattr(importlib.import_module(self._module), self._class)

    def __getattr__(self, name: str) -> Any:
        if name in ("_module", "_class"):  # asked for while being unpickled, before they are there
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """An object of the real class."""
        return self._real()(*args, **options)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._class}, imported when used>"


@dataclass(frozen=True)
class Own:
    """A model of the package: where its configuration and its class are to be found."""

    config: Later
    model: Later


VERB_NUMBER = "attnflow_verb_number"
LSTM = "attnflow_lstm"
MODELS = {
    VERB_NUMBER: Own(
        Later("attnflow.models.verb_number_config", "VerbNumberConfig"),
        Later("attnflow.models.verb_number", "VerbNumberModel"),
    ),
    LSTM: Own(Later("attnflow.models.lstm_config", "LSTMConfig"), Later("attnflow.models.lstm", "LSTMClassifier")),
}
"""The package's models by model type."""


class _AfterImport(MetaPathFinder):
    """Adds the model types right after the Auto classes were imported, once; finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The ordinary spec of the awaited module, with our addition behind its loading."""
        if fullname != AUTO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _add_configs(module)

        loader.exec_module = exec_module
        return spec


def _add_configs(module: ModuleType) -> None:
    for model_type, own in MODELS.items():
        module.CONFIG_MAPPING.register(model_type, own.config, exist_ok=True)


def register() -> None:
    """Make ``AutoConfig`` know the package's models; the models follow with their configurations' own modules."""
    if AUTO in sys.modules:
        _add_configs(sys.modules[AUTO])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def register_models(config_class: Any) -> None:
    """Make ``AutoModelForSequenceClassification`` and ``AutoModel`` know the model of ``config_class``."""
    import transformers

    for auto in (transformers.AutoModelForSequenceClassification, transformers.AutoModel):
        mapping: Any = auto._model_mapping
        mapping.register(config_class, MODELS[config_class.model_type].model, exist_ok=True)
