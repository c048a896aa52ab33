"""The sampler's process with real Gaussian processes, which need PyTorch and SciPy."""

import json
import math
import subprocess
from typing import Any

from frameworks.bench import BIN
from stoker.sweep.definition.definition import check

DEFINITION = {
    "name": "bowl",
    "method": "gp",
    "parameters": {
        "x": {"distribution": "uniform", "min": 0, "max": 1},
        "lr": {"distribution": "log_uniform", "min": 1e-4, "max": 1},
        "fixed": {"value": 7},
    },
    "metric": {"name": "loss", "goal": "minimize"},
    "command": ["true"],
}


def loss(point: dict[str, Any]) -> float:
    """A bowl, whose bottom is at 0.3 and 0.01."""
    return float((point["x"] - 0.3) ** 2 + (math.log10(point["lr"]) + 2) ** 2 / 9)


def test_it_finds_the_bottom_of_a_bowl(tmp_path: Any) -> None:
    with subprocess.Popen(
        [BIN / "python", "-m", "stoker.sweep.sampling.sampler_process"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def say(message: dict[str, Any]) -> None:
            print(json.dumps({"sweep": 1, **message}), file=process.stdin, flush=True)

        say({"generation": 1, "definition": check(DEFINITION)})
        found = []
        for number in range(16):
            say({"ask": 1, "id": f"r{number}"})
            answer = json.loads(process.stdout.readline())
            [point] = answer["points"]
            assert point["fixed"] == 7
            found.append(loss(point))
            told = {"trial": number, "params": point, "value": found[-1], "state": "complete"}
            say({"tell": [told]})
        process.stdin.close()
    first, later = found[:10], found[10:]  # the first are spread over the space, the others thought
    assert min(later) < min(first) / 5
    assert min(later) < 0.003
