"""squeue --json: the fields of Slurm 22.05 (openapi/v0.0.38) that stoker knows."""

from __future__ import annotations

import json

from stoker.compat.slurm.columns.job_fields import CLUSTER, VERSION, SlurmJobView, group_name
from stoker.wire import JsonObject


def print_json(jobs: list[SlurmJobView]) -> None:
    """Print jobs as one JSON value."""
    major, minor, micro = (int(part) for part in VERSION.split("."))
    meta = {
        "plugin": {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"},
        "Slurm": {
            "version": {"major": major, "micro": micro, "minor": minor},
            "release": VERSION,
        },
    }
    reply = {"meta": meta, "errors": [], "jobs": [_job(job) for job in jobs]}
    print(json.dumps(reply, indent=2))


def _job(view: SlurmJobView) -> JsonObject:
    job, index = view.job, view.index
    memory = view.request.get("memory")
    return {
        "account": job.get("account") or "",
        "array_job_id": view.array_id or 0,
        "array_task_id": int(index) if index is not None and index.isdecimal() else None,
        "array_task_string": index if view.is_folded else "",
        "batch_flag": True,
        "batch_host": view.batch_host or "",
        "cluster": CLUSTER,
        "command": job.get("command") or "",
        "comment": job.get("comment") or "",
        "cpus": view.cores,
        "cpus_per_task": view.node_cores,
        "current_working_directory": job.get("directory") or "",
        "dependency": "" if view.dependency == "(null)" else view.dependency,
        "end_time": int(view.end or 0),
        "excluded_nodes": ",".join(view.request.get("not_nodes") or ()),
        "exit_code": (int(job.get("exit_code") or 0) << 8) | int(job.get("signal") or 0),
        "group_id": view.group_id,
        "group_name": group_name(view.group_id),
        "job_id": int(view.raw_id),
        "job_state": view.state,
        "memory_per_cpu": None,
        "memory_per_node": int(memory) if memory else None,
        "name": job.get("name") or "",
        "node_count": view.node_count,
        "nodes": view.nodes,
        "partition": job.get("queue") or "",
        "priority": view.priority,
        "qos": "",
        "required_nodes": ",".join(view.request.get("nodelist") or ()),
        "requeue": bool(view.requeue),
        "restart_cnt": view.restarts,
        "standard_error": job.get("error_log") or job.get("log") or "",
        "standard_input": "/dev/null",
        "standard_output": job.get("log") or "",
        "start_time": int(view.start or 0),
        "state_description": "",
        "state_reason": view.reason,
        "submit_time": int(view.submitted or 0),
        "tasks": view.node_count,
        "time_limit": None if view.time_limit is None else -(-view.time_limit // 60),
        "tres_alloc_str": "" if view.is_pending else view.tres,
        "tres_per_node": view.gpus or "",
        "tres_req_str": view.tres,
        "user_id": view.user_id,
        "user_name": job.get("user") or "",
    }
