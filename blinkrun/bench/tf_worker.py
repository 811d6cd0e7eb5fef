"""A worker of ``bench --framework tf``: Keras or tf_keras in a process without blinkrun's job.

``python -m blinkrun.bench.tf_worker keras|tf_keras|mwms THREADS`` answers requests, a line of JSON
each, until its pipe is closed (`workers.Worker`).
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from typing import Any, TextIO

from blinkrun.bench.processes import peak_bytes, rest_bytes


def main(argv: list[str] | None = None) -> None:
    """Answer what comes on stdin; ends with it."""
    kind, threads = sys.argv[1:] if argv is None else argv
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what frameworks print is no answer
        try:
            answers = Answers(kind, int(threads))
            _say(out, {})
            while True:
                _say(out, answers.to(**json.loads(requests.get())))
        except Exception as err:  # whatever it is, the rank raises it
            _say(out, {"error": f"{type(err).__name__}: {err}".splitlines()[0]})
            os._exit(1)


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Take requests; when nobody is left to ask, end, in whatever collective this process is."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _say(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


class Answers:
    """What the requests do."""

    def __init__(self, kind: str, threads: int) -> None:
        from blinkrun.bench import tf_ways  # noqa: PLC0415  (imports TensorFlow)

        tf_ways.limit_threads(threads)
        self._ways = tf_ways
        self._strategy: Any = None
        if kind == "mwms":
            import tensorflow as tf  # noqa: PLC0415

            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._keras = importlib.import_module("keras" if kind == "keras" else "tf_keras")
        self._way: Any = None

    def to(self, do: str, **given: Any) -> dict[str, Any]:
        """Return the answer to request `do`: rest, make, run, digest or peak."""
        if do == "rest":
            return {"rest_bytes": rest_bytes()}
        if do == "make":
            self._way = None  # the memory of the one before goes first
            task = self._ways.Task(**given)
            self._way = self._ways.Fit(self._keras, task, strategy=self._strategy)
            return {}
        if do == "run":
            return {"seconds": self._way.run(**given)}
        if do == "digest":
            return {"digest": self._way.digest()}
        if do == "peak":
            return {"peak_bytes": peak_bytes()}
        raise ValueError(f"no request is called {do}")


if __name__ == "__main__":
    main()
