"""GET /live: what changes, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from starlette.requests import Request
from starlette.responses import Response

from stoker import __version__, wire
from stoker.core.state.state import State
from stoker.daemon.context import reply_only
from stoker.daemon.handlers import queries
from stoker.daemon.http.auth import abort_connection
from stoker.daemon.http.codec import HEADERS, StreamedReply, parse_number
from stoker.daemon.http.permission import caller_of, session_of
from stoker.daemon.http.sessions import ACT, VIEW, Session
from stoker.daemon.rights import Access, Caller
from stoker.daemon.routes.bridge import RouteContext
from stoker.daemon.routes.live_hub import LiveReader, Topic, sse_frame
from stoker.daemon.views.alarm import alarm_views
from stoker.daemon.views.visible import limit_alarms
from stoker.engine import CommandRejected, CommandResult, Instant
from stoker.schema.live import AlarmsFrame, CountsFrame, Hello, JobsFrame

TOPICS = ("gpus", "counts", "jobs", "sweeps", "nodes", "alarms")
DEFAULT_TOPICS = ("gpus", "counts", "alarms")
RETRY = b"retry: 1000\n\n"


async def live(api: RouteContext, request: Request) -> Response:
    """Return what changes, as server-sent events."""
    query = request.query_params
    topics = _topics(query.get("topics"))
    since = parse_number(query["since"], "since") if query.get("since") else None
    caller, context = caller_of(request.scope), api.context
    is_limited = context.caller is not None and context.access(None) < Access.DETAILS
    user = context.caller.name if context.caller is not None and is_limited else None
    reader = LiveReader(topics, abort_connection(request.scope), user)
    frames = _stream(api, reader, since, session_of(request.scope), caller)
    headers = HEADERS | {"Cache-Control": "no-cache"}
    return StreamedReply(frames, headers=headers, media_type="text/event-stream")


def _topics(text: str | None) -> frozenset[Topic]:
    topics = [word for word in (text or "").split(",") if word] or list(DEFAULT_TOPICS)
    for topic in topics:
        if topic not in TOPICS:
            raise CommandRejected(
                f"There is no topic '{topic}'; the topics are {', '.join(TOPICS)}.", "usage"
            )
    return frozenset(topics)


async def _stream(
    api: RouteContext, reader: LiveReader, since: int | None, session: Session | None,
    caller: Caller | None,
) -> AsyncIterator[bytes]:  # fmt: skip
    rights = _rights(session, caller)

    def describe(state: State, now: Instant) -> CommandResult:
        seq = api.daemon.engine.seq
        hello = Hello(
            version=__version__, api=wire.API_VERSION, boot=api.boot, seq=seq,
            now=round(now.wall, 3), user=api.context.submitter, rights=rights,
            read_only=ACT not in rights, topics=sorted(reader.topics),
        )  # fmt: skip
        return reply_only(
            (
                hello,
                CountsFrame(seq=seq, counts=queries.counts(state)),
                AlarmsFrame(seq=seq, alarms=limit_alarms(api.context, alarm_views(state), state)),
            )
        )

    try:
        await api.hub.add(reader)
        hello, counts, alarms = await api.ask(describe)
        yield RETRY + sse_frame("hello", hello)
        yield b"".join(_first_frames(reader.topics, hello.seq, since, counts, alarms))
        async for frame in reader.frames():
            if session is not None and not api.sessions.is_open(session):
                return
            yield frame
    except CommandRejected:
        return  # the daemon is stopping
    finally:
        api.hub.remove(reader)


def _rights(session: Session | None, caller: Caller | None) -> list[str]:
    if caller is not None and not caller.may_act:
        return [VIEW]
    if caller is not None and not caller.is_admin:
        return [VIEW, ACT]
    if session is None:
        return [VIEW, ACT, "admin"]
    return [VIEW, ACT] if session.rights == ACT else [VIEW]


def _first_frames(
    topics: frozenset[Topic],
    seq: int,
    since: int | None,
    counts: CountsFrame,
    alarms: AlarmsFrame,
) -> Iterable[bytes]:
    """Yield what a reader is given before anything changes."""
    if "counts" in topics:
        yield sse_frame("counts", counts)
    if "alarms" in topics:
        yield sse_frame("alarms", alarms)
    if "jobs" in topics and since is not None and since != seq:
        yield sse_frame("jobs", JobsFrame(seq=seq, reset=True))
