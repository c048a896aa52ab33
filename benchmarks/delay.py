"""TCP relay with a delay, in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def delayed_relay(host: str, port: int, seconds: float) -> Iterator[int]:
    """Relay a loopback port with a delay each way; yield the port to connect to."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_carry(reader, back, seconds), _carry(there, writer, seconds))

    async def serve() -> int:
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        found: int = server.sockets[0].getsockname()[1]
        return found

    try:
        yield asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(10)
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all pending transfers."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_later(0.1, loop.stop)


async def _carry(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float
) -> None:
    """Forward every piece after the same delay, without limiting the bandwidth."""
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            when, data = await pending.get()
            await asyncio.sleep(max(when - asyncio.get_running_loop().time(), 0))
            if not data:
                target.close()
                return
            target.write(data)
            await target.drain()

    delivering = asyncio.ensure_future(deliver())
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            pending.put_nowait((asyncio.get_running_loop().time() + seconds, data))
    pending.put_nowait((asyncio.get_running_loop().time() + seconds, b""))
    with contextlib.suppress(OSError):
        await delivering
