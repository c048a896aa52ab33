"""`stoker mcp --write=own` as the official client of the Model Context Protocol sees it."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client import session as client_session
from mcp.client.stdio import stdio_client

from compat.test_mcp import READ, WRITE
from conftest import Run
from e2e.daemon_fixture import until
from stoker.compat.mcp.protocol import VERSIONS

pytestmark = pytest.mark.e2e


def server() -> StdioServerParameters:
    arguments = ["-m", "stoker", "mcp", "--write=own", "--max-jobs", "3"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


def in_session(test: Callable[[ClientSession], Awaitable[None]]) -> str:
    """Run a test in a session; return the version of the protocol."""

    async def run() -> str:
        async with stdio_client(server()) as streams, ClientSession(*streams) as session:
            version = str((await session.initialize()).protocol_version)
            await test(session)
            return version

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_session_of_each_version(
    home: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(session: ClientSession) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert set(tools) == READ | WRITE
        assert tools["cancel"].annotations.destructive_hint
        assert tools["log"].annotations.read_only_hint
        guide = await session.read_resource("stoker://guide")
        assert "plan_submit" in guide.contents[0].text
        failed = await session.call_tool("job", {"job": "1"})
        assert failed.is_error

    monkeypatch.setattr(client_session, "LATEST_HANDSHAKE_VERSION", version)
    assert in_session(test) == version


def test_a_client_of_the_next_protocol_falls_back(home: Any) -> None:
    async def run() -> None:
        async with Client(stdio_client(server())) as client:
            assert len((await client.list_tools()).tools) == len(READ | WRITE)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_submit_watch_diagnose_and_cancel(stoker: Run) -> None:
    other = stoker("submit", "sleep 600", check=True).stdout.strip()

    async def test(session: ClientSession) -> None:
        async def call(tool: str, **arguments: object) -> Any:
            result = await session.call_tool(tool, arguments)
            text = json.loads(result.content[0].text)
            assert text == {k: v for k, v in result.structured_content.items() if k != "output"}
            return result.structured_content

        assert (await call("plan_submit", command="true"))["count"] == 1
        command = "echo out; echo 'ValueError: no' >&2; exit 127"
        job = (await call("submit", command=command, name="bad", key="1"))["label"]
        assert (await call("submit", command=command, name="bad", key="1"))["label"] == job
        until(lambda: stoker("wait", job).returncode == 127)
        found = await call("diagnose", job=job)
        assert "ValueError: no" in found["output"]
        assert found["hints"][0].startswith("The command was not found")
        assert (await call("history", name="bad"))["jobs"][0]["label"] == job
        sweep = await call("sweep_submit", command="echo {a}", key="2",
                           parameters={"a": {"values": [1, 2]}})  # fmt: skip
        assert sweep["total"] == 2
        assert "3 unfinished" in (await call("submit", command="x", array="0-5", key="3"))["error"]
        assert "its own jobs only" in (await call("cancel", jobs=[other], key="4"))["error"]
        mine = (await call("submit", command="sleep 600", key="5"))["label"]
        assert (await call("cancel", jobs=[mine], key="6"))["done"] == [mine]
        queue = (await call("queue", text="sleep"))["jobs"]
        assert other in [row["label"] for row in queue]
        for tool in ("gpus", "nodes", "sweep", "eta"):
            assert "error" not in await call(tool)

    in_session(test)
