"""Suggest points of sweeps: `python -m stoker.sweep.sampling.sampler_process`.

Reads and writes JSON lines:

    {"sweep": 17, "generation": 1, "definition": {…}}     defines a sweep, or redefines it
    {"sweep": 17, "tell": [{"trial": 3, "params": {…}, "value": 0.3, "state": "complete"}]}
    {"sweep": 17, "ask": 1, "id": "r1"}
    {"sweep": 17, "forget": true}

Only `ask` is answered: `{"sweep": 17, "id": "r1", "points": [{…}], "done": false}`, or with
`"error"` and one sentence. `done`: the space has no more points than these. An invalid line is
answered with an `"error"` alone. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.sweep.sampling.optuna_study import Study

MISSING = "optuna is not installed; pip install 'stoker[optuna]'"


class SamplerServer:
    """Keeps a study per sweep."""

    def __init__(self) -> None:
        self.studies: dict[int, Study] = {}
        self.broken: dict[int, str] = {}
        """Sweeps that cannot be sampled, and why."""

    def answer(self, line: bytes | str) -> dict[str, Any] | None:
        """Return the reply to a line, if any."""
        try:
            message = json.loads(line)
            sweep = int(message["sweep"])
        except (ValueError, TypeError, KeyError) as error:
            return {"error": f"invalid request: {type(error).__name__}: {error}"}
        try:
            return self._handle(sweep, message)
        except Exception as error:  # noqa: BLE001 - one sweep's trouble is not another's
            traceback.print_exc()
            reply = {"sweep": sweep, "error": f"the sampler failed: {_sentence(error)}"}
            return {**reply, "id": message["id"]} if "id" in message else reply

    def _handle(self, sweep: int, message: dict[str, Any]) -> dict[str, Any] | None:
        if "definition" in message:
            self._define(sweep, message["definition"])
        elif "tell" in message:
            if sweep in self.studies:
                for entry in message["tell"]:
                    self.studies[sweep].tell(entry)
        elif "ask" in message:
            return {"sweep": sweep, "id": message.get("id"), **self._suggest(sweep, message["ask"])}
        elif message.get("forget"):
            self._forget(sweep)
        else:
            return {"sweep": sweep, "error": "a line without definition, tell, ask or forget"}
        return None

    def _define(self, sweep: int, definition: dict[str, Any]) -> None:
        self._forget(sweep)
        try:
            import optuna
        except ImportError as error:
            self.broken[sweep] = MISSING if error.name == "optuna" else f"optuna: {error}"
            return
        from stoker.sweep.sampling.optuna_study import Study

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self.studies[sweep] = Study(definition)
        except (ValueError, TypeError, KeyError) as error:
            self.broken[sweep] = f"the sweep cannot be sampled: {_sentence(error)}"

    def _suggest(self, sweep: int, count: int) -> dict[str, Any]:
        from_before = self.broken.get(sweep)
        if from_before is not None:
            return {"error": from_before}
        if sweep not in self.studies:
            return {"error": f"sweep {sweep} has not been defined"}
        from stoker.sweep.sampling.optuna_study import MissingPackage

        try:
            points, done = self.studies[sweep].ask(count)
        except (MissingPackage, ImportError) as error:
            return {"error": _sentence(error)}
        return {"points": points, "done": done}

    def _forget(self, sweep: int) -> None:
        self.studies.pop(sweep, None)
        self.broken.pop(sweep, None)


def serve(lines: IO[bytes], out: IO[str]) -> None:
    """Answer until the input ends or the output is closed."""
    server = SamplerServer()
    for line in lines:
        reply = server.answer(line)
        if reply is not None:
            try:
                out.write(json.dumps(reply) + "\n")
                out.flush()
            except BrokenPipeError:
                os._exit(0)  # a buffer that cannot be flushed would raise at exit


def main() -> None:
    """Serve on stdin and stdout; other output goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__} {text}" if isinstance(error, KeyError) else text


if __name__ == "__main__":
    main()
