"""The error of a model that cannot be trained. Does not import torch."""


class ModelFailed(ValueError):
    """Raised for a module that cannot be trained here: one line that says why."""
