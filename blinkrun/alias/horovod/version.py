"""The version of Horovod whose interface this is, and of the blinkrun that it runs on."""

from blinkrun.version import __version__ as _blinkrun

__version__ = f"0.28.1+blinkrun.{_blinkrun}"
