"""Options that are rendered from a spec make the same spec again."""

from typing import Any

import pytest

from stoker.core.model.spec import Spec
from stoker.core.options.render import render_options
from stoker.core.options.submit import ParseContext, parse_options

NOW = 1_700_000_000.0
ENVIRONMENT = {"PATH": "/bin", "SEED": "7"}


def made(options: dict[str, Any]) -> Spec:
    """Return the spec that options make, as a submission does."""
    parsed = parse_options(options, ParseContext(NOW, lambda word: [int(word)], lambda _: []))
    fields = {key: value for key, value in parsed.fields.items() if value is not None}
    common = {"kind": "line", "user": "ada", "directory": "/d", "shell": "/bin/sh"}
    defaults = {"name": "job", "environment": "e", "request": parsed.request}
    return Spec(**{**common, **defaults, **fields})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gpus": "2"},
        {"gpus": "0.5", "gpu_memory": "8G", "cpus": "4", "mem": "16G"},
        {"gpus": "a100|h100:2", "gpus_min_vram": "40G", "no_threads": True, "cpus": "2"},
        {"gpus": "2", "use_gpus": "0,1", "avoid_gpus": "3", "explicit": True},
        {"use_gpus": "0,1", "share": "0.5"},
        {"exclusive": True, "nodelist": "box,ant", "exclude": "bee"},
        {"nodes": "2", "gpus": "4", "ntasks_per_node": "2"},
        {"ntasks": "4", "cpus": "2", "mem_per_cpu": "1G"},
        {"ntasks": "4", "gpus_per_task": "1"},
        {"resources": ["licence=1", "disk=0.5"], "queue": "night", "time": "1:30:00"},
        {"retries": "3", "retry_on": "oom,exit:3"},
        {"requeue": True},
        {"requeue": True, "retries": "0"},
        {"no_requeue": True},
        {"output": "logs/%j", "error": "e", "open_mode": "truncate", "comment": "x", "name": "n"},
        {"label": ["a", "b"], "group": "g", "account": "lab", "on_end": "true", "client": "grass"},
        {"signal": "B:USR1@120", "deadline": "2030-01-02T03:04:05"},
        {"slurm_env": True, "verbatim": True, "if_unreachable": "restart:1h"},
        {"env": ["SEED=7"]},
        {"epochs": "3", "expect": "2h", "batch_size": "8", "snapshots_dir": "/s"},
        {"epochs": "3", "gpus": "1..4"},
        {"epochs": "3", "gpus": "2", "exclusive_gpu": True},
        {"single_gpu": True},
        {"single_gpu": True, "gpu_memory": "4G"},
        {"exclusive_gpu": True, "gpus": "1"},
        {"distributed": True, "gpus": "2", "training_set_size": "100"},
        {"image": "a/b:1", "mount": ["/x:/y:ro,optional", "/z:/z"], "ports": "1:2,3:4"},
        {"image": "a/b:1", "workdir": "image"},
        {"send": ["a", "b"], "bring": ["out"], "leave_out": ["*.tmp"], "bring_into": "/r"},
        {"no_send": True, "no_bring": True},
        {"alarm": ["idle=off", "hung=1h,retry", "nan=cancel"]},
        {"notify": ["lab:fail,alarm", "a@b.org"]},
    ],
    ids=lambda options: "-".join(options) or "none",
)
def test_rendered_options_make_the_same_spec(options: dict[str, Any]) -> None:
    spec = made(options)
    assert made(render_options(spec, ENVIRONMENT)) == spec
