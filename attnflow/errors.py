"""The errors of attnflow: each states the two facts that disagree and the line to paste."""

from __future__ import annotations


class AttnFlowError(ValueError):
    """Base of all errors that attnflow raises on purpose.

    It is a ``ValueError``, so that code which guards against bad values keeps working.
    """


class CaptureError(AttnFlowError):
    """The model's attention could not be captured, or not all of it."""


class ShapeError(AttnFlowError):
    """An array has the wrong rank or shape, or two of them do not fit together."""


class WeightsError(AttnFlowError):
    """An array cannot be attention weights: it holds NaN or negative numbers, or its rows do not sum to one."""


class InputError(AttnFlowError):
    """The text, the ids or the tokenizer do not fit the model."""


class SelectionError(AttnFlowError):
    """A position, layer, head, block or target that is not there."""


class FileError(AttnFlowError):
    """A file exists already, or is not one that attnflow wrote."""


class AttnFlowWarning(UserWarning):
    """A result that is right as computed and may mislead all the same; its ``notes`` say the same."""
