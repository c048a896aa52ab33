"""The tool `diagnose`: what is known of a job that fails, waits or wastes its GPUs."""

from __future__ import annotations

from stoker.client.client import Client
from stoker.client.errors import StokerError
from stoker.compat.mcp import read_tools
from stoker.compat.mcp.job_log import around_error
from stoker.compat.mcp.text import fenced
from stoker.wire import JsonObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

TAIL_LINES = 400
SHOWN_LINES = 60
LOW_UTILIZATION = 20.0
MIN_MEASURED_SECONDS = 300.0
EXIT_HINTS = {
    126: "The command is not executable: check its permissions and its #! line.",
    127: "The command was not found: check PATH, the environment and the directory.",
    137: "It was killed by SIGKILL: often because memory ran out; request more with mem.",
    139: "It crashed (segmentation fault), often in a native library.",
}
STATE_HINTS = {
    "OUT_OF_MEMORY": "Memory ran out: request more (mem, gpu_memory), or use a smaller batch.",
    "TIMEOUT": "It reached its time limit: set more hours, or save checkpoints and retry.",
    "DEADLINE": "It could not end before its deadline.",
    "NODE_FAIL": "Its node failed: retry it.",
}


def diagnose(client: Client, given: JsonObject) -> JsonObject:
    """Return state, cause, use, the telling part of the log, and hints."""
    view = read_tools.one_job(client, given["job"])
    exact = f"{view['id']}-{view['id']}"
    found = read_tools.summary(view, read_tools.DETAILS)
    usage = client.usage(exact)["total"]
    found["usage"] = usage
    is_waiting = view["result"] is None and not view["started_at"]
    if is_waiting:
        found["why"] = read_tools.why(client, {"job": exact})
    found["hints"] = list(_hints(view, usage))
    try:
        data = b"".join(client.log(exact, tail=TAIL_LINES))
    except StokerError:
        data = b""
    if data:
        lines = data.rstrip(b"\n").split(b"\n")
        failed = view["result"] not in (None, 0)
        telling = around_error(lines, SHOWN_LINES) if failed else []
        found["output"], _ = fenced(
            f"output of job {view['label']}", b"\n".join(telling or lines[-SHOWN_LINES:])
        )
    return found


def _hints(view: JsonObject, usage: JsonObject) -> Iterator[str]:
    if view["state"] in STATE_HINTS:
        yield STATE_HINTS[view["state"]]
    elif view["exit_code"] in EXIT_HINTS:
        yield EXIT_HINTS[view["exit_code"]]
    if view["attempt"] > 2:
        yield f"This is attempt {view['attempt']}: it keeps failing, or is preempted often."
    utilization = usage["utilization"]
    measured = usage["measured_seconds"]
    if utilization is None or measured < MIN_MEASURED_SECONDS:
        return
    if utilization < LOW_UTILIZATION:
        yield (
            f"Its GPUs were {utilization:.0f} % busy: look for slow data loading, or request "
            "a share of a GPU."
        )
