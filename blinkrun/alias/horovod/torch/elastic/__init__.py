"""Elastic training: absent in this version; every name says so."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod import absent  # noqa: PLC0415

    raise ImportError(absent(f"{__name__}.{name}"))
