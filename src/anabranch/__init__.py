"""anabranch: fork-join reasoning for language models, on unmodified engines."""

__version__ = "0.1.0"
