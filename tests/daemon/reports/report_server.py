"""A TLS port that takes training reports for one handed-over attempt, without a daemon."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from daemon.monitor_fixture import MonitorFixture
from executors.recording_sink import RecordingSink
from specs import launch_of
from stoker.core.events import NodeAdded
from stoker.core.model.job import AttemptId
from stoker.core.model.resources import Placement
from stoker.core.model.spec import Container, FileTransfer, Training
from stoker.daemon.http import credentials
from stoker.daemon.http.auth import TCP_AUTH, AuthenticatedProtocol, TcpAuth
from stoker.daemon.http.codec import ERROR_HANDLERS, AuthMiddleware
from stoker.daemon.http.listeners import TcpListeners
from stoker.daemon.http.sessions import Sessions
from stoker.daemon.rights import Need
from stoker.daemon.routes import reports
from stoker.daemon.routes.app import OCTETS, ApiRoute, _endpoint
from stoker.daemon.routes.report_rates import ReportRates
from stoker.daemon.training.report_receiver import ReportReceiver
from stoker.engine import Instant
from stoker.executors.agent.executor import AgentEnvironment
from stoker.executors.kubernetes.api.client import Reply
from stoker.executors.kubernetes.handover.executor import HandoverExecutor, HandoverSettings
from stoker.executors.kubernetes.handover.pod_template import PodTemplate, VolumeRule
from stoker.executors.port import Barrier
from stoker.executors.report_tokens import ReportAccess, ReportSource, ReportTokens
from stoker.probes import remote_facts
from stoker.schema.training import ReportReply
from virtual_reactor import VirtualReactor

ATTEMPT = AttemptId(7, 0)


class RecordingApi:
    """An API server that has every pod, and runs every command."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.commands: list[list[str]] = []

    def watch(self, key: str, selector: str, listener: Any) -> None:
        listener.on_listed([])

    def request(self, method: str, path: str, on_reply: Any, body: Any = None, **_: Any) -> None:
        if method == "POST" and body["kind"] == "Pod":
            status = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
            self.pods[body["metadata"]["name"]] = body
            on_reply(Reply(201, body=msgspec.Raw(msgspec.json.encode(body | {"status": status}))))

    def run(self, argv: list[str], on_reply: Any) -> None:
        self.commands.append(argv)
        on_reply(Reply(200))

    def follow_log(self, *_: Any) -> None:
        pass

    stop_log = follow_log

    def close(self) -> None:
        pass


class ReportServer:
    """A monitor with a job that was handed over, its executor, and the port."""

    def __init__(
        self, base: Path, executor: HandoverExecutor | None = None, address: str = "127.0.0.1:0"
    ) -> None:
        """`executor`: one that has a pod, instead of one without a cluster."""
        self.base, self.state_dir = base, base / "state"
        self.state_dir.mkdir(parents=True)
        self.now = 0.0
        self.api = RecordingApi()
        self.executor = executor or self._executor()
        self.box = MonitorFixture(base, remote=self.executor)
        added = NodeAdded(
            at=1.0, name="lab", address="kubernetes://", key=None, executor="kubernetes"
        )
        self.box.state.record.remotes["lab"] = added
        self.box.job.placement = Placement("lab", ())
        self.tokens = ReportTokens(
            lambda: credentials.load_token(str(self.state_dir), credentials.REPORT_KEY_NAME)
        )
        certificate, _ = credentials.load_certificate(str(self.state_dir))
        self.access = ReportAccess(self.tokens, lambda: credentials.fingerprint(certificate))
        self.is_recorded = True
        self._serve(address)

    def describe(self, source: ReportSource) -> str:
        """Return how a part reports here."""
        return self.access.describe(self.address, source)

    def _executor(self) -> HandoverExecutor:
        self.reactor = VirtualReactor(lambda: self.now)
        environment = AgentEnvironment(
            "abcdef01", str(self.base), self.reactor, lambda _: b"", lambda _: None,
            remote_facts.parse,
        )  # fmt: skip
        settings = HandoverSettings(PodTemplate("lab"), report_access=self.describe)
        made = HandoverExecutor("lab", self.api, environment, _NoRecords(), settings)  # type: ignore[arg-type]
        made.open(RecordingSink())
        return made

    def start(self) -> list[str]:
        """Hand the job over; return what its pod gets to report here."""
        (words,) = self.start_parts(1)
        return words

    def start_parts(self, count: int) -> list[list[str]]:
        """Hand over a job of several pods; return what each of them gets to report here."""
        parts = (Placement("lab", ()),) * (count - 1)
        placement = self.box.job.placement = Placement("lab", (), other_parts=parts)
        launch = launch_of(
            extra={"STOKER_TOKEN": "t", "JOB_UUID": "abcdef01-7"}, out=str(self.base / "out"),
            transfer=FileTransfer(send=()),
            container=Container("img:1", in_job_directory=False),
            checkpoints=str(self.base / "checkpoints/abcdef01-7"),
            reports=str(self.base / "training/7.0"), training=Training(), placement=placement,
        )  # fmt: skip
        self.executor.creations._library = {"metadata": {"name": "l"}, "data": {}}
        self.executor.template = PodTemplate("lab", volumes=(VolumeRule("/", path="/"),))
        for rank in range(count):
            self.executor.start(launch, Barrier(rank, timeout=300) if count > 1 else None)
        containers = (pod["spec"]["containers"][0] for pod in self.api.pods.values())
        return [
            str(each["value"]).split()
            for container in containers
            for each in container["env"]
            if each["name"] == "STOKER_REPORT_ACCESS"
        ]

    def token(self, attempt: AttemptId = ATTEMPT, rank: int = 0) -> str:
        return self.tokens.issue(ReportSource(attempt, rank))

    # -- the port -----------------------------------------------------------------------

    def _serve(self, address: str) -> None:
        self.listeners = TcpListeners(str(self.state_dir))
        self.address = self.listeners.add(address, tls=True)
        self.event_loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        registry: Any = SimpleNamespace(executor=lambda _: self.executor)
        receiver = ReportReceiver(self.box.monitor, registry)
        self.daemon = SimpleNamespace(reports=receiver, engine=self)
        self.report_rates = ReportRates()
        self.context = SimpleNamespace(is_system=False, caller=None)
        route = ApiRoute("POST", "/report", Need.VIEW, reports.receive, ReportReply, OCTETS)
        routes = [Route("/v1/report", _endpoint(self, route), methods=["POST"])]  # type: ignore[arg-type]
        app = AuthMiddleware(
            Starlette(routes=routes, exception_handlers=ERROR_HANDLERS),
            Sessions(f"{self.state_dir}/sessions.json"), (), (), self.tokens,
        )  # fmt: skip
        config = uvicorn.Config(app, http=AuthenticatedProtocol, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.Server(config).server_state

        def protocol(auth: TcpAuth) -> Any:
            return config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=state, app_state={TCP_AUTH: auth}
            )

        asyncio.set_event_loop(self.event_loop)
        self.event_loop.call_soon(self.listeners.begin, protocol)
        self.event_loop.run_forever()
        self.event_loop.run_until_complete(asyncio.sleep(0.05))
        self.event_loop.close()

    @property
    def has_unrecorded_events(self) -> bool:
        return not self.is_recorded

    async def ask(self, handler: Any) -> Any:
        """Handle a command at once: the test waits for its reply."""
        result = handler(self.box.state, Instant(1.0, 1.0))
        return result.reply(None)

    def restart(self) -> None:
        """Continue as a daemon that has only read its journal."""
        self.box.monitor.close()
        self.box.open_monitor()
        self.daemon.reports.training = self.box.monitor

    def close(self) -> None:
        """End the port."""

        def stop() -> None:
            self.listeners.close()
            self.event_loop.stop()

        if self.thread.is_alive():
            self.event_loop.call_soon_threadsafe(stop)
            self.thread.join()
        self.box.monitor.close()


class _NoRecords:
    def abandoned_attempts(self, node: str) -> list[AttemptId]:
        return []
