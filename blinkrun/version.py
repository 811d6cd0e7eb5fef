"""The version of blinkrun, as packages and `blinkrun --version` give it."""

__version__ = "0.1.0"
