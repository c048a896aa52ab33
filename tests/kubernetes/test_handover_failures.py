"""What can go wrong while attempts are pods of a real kubelet: none is lost, none runs twice."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from executors.contract import ENDS, FIRST, SECOND
from kubernetes.control_plane import KubernetesCluster
from kubernetes.handover_bench import HandoverBench
from kubernetes.kubelet_node import IMAGE, KubeletNode
from stoker.core import events as e
from stoker.core.launch.launch import Launch
from stoker.core.model.resources import DeviceAllocation, Placement
from stoker.core.model.spec import Container, Mount
from stoker.executors.port import Barrier

pytestmark = [pytest.mark.proof, pytest.mark.timeout(240)]

RULES = (
    {"apiGroups": [""], "resources": ["pods"],
     "verbs": ["create", "get", "list", "watch", "delete", "patch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
)  # fmt: skip
"""All rights that handing over needs."""
COUNT = "n=0; while [ $n -lt 60 ]; do n=$((n + 1)); echo line $n; sleep 0.1; done; exit 3"
COUNTED = "".join(f"line {number}\n" for number in range(1, 61))

Make = Callable[..., HandoverBench]


@pytest.fixture
def make(
    tmp_path: Path, kubelet_node: KubeletNode, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Create the bench of a test; its pods run on the real node, or on fake ones."""
    cluster, made = kubelet_node.cluster, []
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)

    def create(nodes: str = "real", **more: object) -> HandoverBench:
        cluster.use_nodes(nodes)
        made.append(HandoverBench(tmp_path, cluster, **more))  # type: ignore[arg-type]
        return made[0]

    yield create
    made[0].stop()
    cluster.delete_pods()


def test_a_create_whose_answer_is_lost_creates_one_pod(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "echo once >>$HOME/ran; exit 3"))
    bench.turn()
    os.kill(bench.helper(), signal.SIGKILL)
    assert bench.exit(FIRST).code == 3
    assert (bench.home / "ran").read_text() == "once\n"


def test_each_byte_of_the_output_arrives_once_though_the_log_is_cut(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, COUNT))
    for lines in (5, 25, 45):
        bench.until(lambda n=lines: f"line {n}\n" in bench.output(FIRST))
        os.kill(bench.helper(), signal.SIGKILL)
    assert bench.exit(FIRST).code == 3
    assert bench.output(FIRST) == COUNTED


def test_a_later_daemon_continues_the_output(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, COUNT))
    bench.until(lambda: "line 5\n" in bench.output(FIRST))
    bench.restart(FIRST)
    bench.until(lambda: "line 20\n" in bench.output(FIRST))
    Path(bench.base / "notes/lab.7.0").unlink()
    bench.restart(FIRST)
    assert bench.exit(FIRST).code == 3
    assert bench.output(FIRST) == COUNTED


def test_long_lines_carriage_returns_and_a_missing_line_end(make: Make) -> None:
    bench = make()
    script = "head -c 100000 /dev/zero | tr '\\0' x; printf '\\na\\rb\\n\\377\\nlast'; echo e >&2"
    bench.executor.start(bench.script(FIRST, script))
    assert bench.exit(FIRST).code == 0
    output = Path(bench.launches[FIRST].out).read_bytes()
    assert output == b"x" * 100000 + b"\na\rb\n\xff\nlaste\n"


def test_stderr_may_have_a_file_of_its_own(make: Make) -> None:
    bench = make()
    launch = bench.script(FIRST, "echo out; echo err >&2; printf end >&2")
    launch = bench.launches[FIRST] = replace(launch, err=f"{bench.base}/err")
    bench.executor.start(launch)
    assert bench.exit(FIRST).code == 0
    assert bench.output(FIRST) == "out\n"
    assert Path(f"{bench.base}/err").read_text() == "err\nend\n"


def test_the_server_restarts_while_an_attempt_runs_and_another_is_created(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "echo 1 >>$HOME/ran; sleep 8; exit 3"))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    bench.cluster.stop_apiserver()
    try:
        bench.executor.start(bench.script(SECOND, "echo 2 >>$HOME/ran; exit 4"))
        bench.until(lambda: bench.sink.downs)
    finally:
        bench.cluster.start_apiserver()
    assert [bench.exit(each).code for each in (FIRST, SECOND)] == [3, 4]
    assert sorted((bench.home / "ran").read_text().split()) == ["1", "2"]
    assert len(bench.sink.ups) == 2


def test_a_pod_that_was_deleted_by_hand_is_lost_without_a_failure(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "echo begun; sleep 60"))
    bench.until(lambda: "begun" in bench.output(FIRST))
    bench.cluster.kubectl("delete", "pod", bench.pod(FIRST), "--wait=false")
    lost = bench.end(FIRST)
    assert isinstance(lost, e.AttemptLost)
    assert lost.preempted
    assert bench.claims() == [bench.pod(FIRST)]
    bench.executor.acknowledge([FIRST])
    bench.until(lambda: not bench.cluster.pods())


def test_an_evicted_pod_may_end_by_itself(make: Make) -> None:
    bench = make()
    script = "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    bench.executor.start(bench.script(FIRST, script))
    bench.until(lambda: "begun" in bench.output(FIRST))
    eviction = (
        f'{{"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata":'
        f' {{"name": "{bench.pod(FIRST)}", "namespace": "default"}}}}'
    )
    path = f"/api/v1/namespaces/default/pods/{bench.pod(FIRST)}/eviction"
    bench.cluster.kubectl("create", "--raw", path, "-f", "-", input=eviction)
    assert bench.exit(FIRST).code == 0
    assert bench.output(FIRST).endswith("saved\n")


def test_the_finalizer_keeps_a_deleted_pod_for_the_next_daemon(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "echo begun; sleep 60"))
    bench.until(lambda: "begun" in bench.output(FIRST))
    bench.stop()
    bench.cluster.kubectl("delete", "pod", bench.pod(FIRST), "--wait=false")
    bench.until(lambda: bench.cluster.pods()[bench.pod(FIRST)]["status"]["phase"] == "Failed")
    bench.restart(FIRST)
    assert isinstance(bench.end(FIRST), e.AttemptLost)
    assert bench.output(FIRST).startswith("begun\n")


def test_a_finalizer_that_was_taken_off_by_hand_loses_the_attempt_and_no_more(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "echo begun; sleep 60"))
    bench.until(lambda: "begun" in bench.output(FIRST))
    bench.stop()
    bench.cluster.delete_pods()
    bench.restart(FIRST)
    lost = bench.end(FIRST)
    assert isinstance(lost, e.AttemptLost)
    assert lost.why == "its pod does not exist any more"


def test_an_image_that_cannot_be_pulled_fails_the_start(make: Make) -> None:
    bench = make(image="localhost/nosuch:1", stuck_seconds=2.0)
    bench.executor.start(bench.script(FIRST, "true"))
    failed = bench.end(FIRST)
    assert isinstance(failed, e.StartFailed)
    assert "localhost/nosuch:1" in failed.why
    queued = [event.reason for event in bench.of(FIRST, e.AttemptQueued)]  # type: ignore[attr-defined]
    assert any("ErrImagePull" in reason or "BackOff" in reason for reason in queued)


def test_a_volume_that_cannot_be_mounted_fails_the_start(make: Make) -> None:
    bench = make(stuck_seconds=2.0)
    box = Container(IMAGE, mounts=(Mount(f"{bench.base}/nosuch", "/x"),), in_job_directory=False)
    bench.executor.start(replace(bench.script(FIRST, "true"), container=box))
    failed = bench.end(FIRST)
    assert isinstance(failed, e.StartFailed)
    assert failed.why.startswith("FailedMount: ")
    assert "nosuch" in failed.why
    queued = [event.reason for event in bench.of(FIRST, e.AttemptQueued)]  # type: ignore[attr-defined]
    assert failed.why in queued


def test_a_command_that_does_not_exist_has_the_code_of_a_shell(make: Make) -> None:
    bench = make()
    bench.executor.start(replace(bench.script(FIRST, ""), argv=("/no/such",)))
    assert bench.exit(FIRST).code == 127


def test_what_cannot_be_scheduled_says_why_and_can_be_cancelled(make: Make) -> None:
    bench = make()
    gpus = Placement("lab", (DeviceAllocation("gpu", "*", 9000),))
    bench.executor.start(replace(bench.script(FIRST, "true"), placement=gpus))
    bench.until(lambda: any(
        "Insufficient nvidia.com/gpu" in event.reason  # type: ignore[attr-defined]
        for event in bench.of(FIRST, e.AttemptQueued)
    ))  # fmt: skip
    bench.executor.terminate(FIRST, 10.0)
    assert isinstance(bench.end(FIRST), e.StartCancelled)


def test_a_quota_lets_one_start_at_a_time_be_tried(make: Make) -> None:
    bench = make()
    bench.cluster.apply({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "default"}, "spec": {"hard": {"pods": "0"}},
    })  # fmt: skip
    try:
        used = ("get", "quota", "none", "-o", "jsonpath={.status.hard.pods}")
        bench.until(lambda: bench.cluster.kubectl(*used) == "0")
        bench.executor.start(bench.script(FIRST, "true"))
        cancelled = bench.end(FIRST)
        assert isinstance(cancelled, e.StartCancelled)
        assert "exceeded quota" in cancelled.why
        assert cancelled.delay > 0
        assert bench.executor.ahead == 1
    finally:
        bench.cluster.kubectl("delete", "quota", "none")
    bench.executor.start(bench.script(SECOND, "exit 3"))
    assert bench.exit(SECOND).code == 3
    assert bench.executor.ahead > 1


def test_memory_that_runs_out_is_a_lack_of_memory(make: Make) -> None:
    bench = make()
    memory = Placement("lab", (DeviceAllocation("mem", "*", 40),))
    words = ("python3", "-c", "x = bytearray(1 << 30); x[::4096] = b'1' * (1 << 18)")
    bench.executor.start(replace(bench.script(FIRST, ""), argv=words, placement=memory))
    assert bench.exit(FIRST).memory == "host"


def test_the_deadline_of_the_pod_is_a_time_limit(make: Make) -> None:
    bench = make()
    bench.executor.start(bench.script(FIRST, "sleep 60"))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    patch = '{"spec": {"activeDeadlineSeconds": 1}}'
    bench.cluster.kubectl("patch", "pod", bench.pod(FIRST), "-p", patch)
    bench.until(lambda: bench.of(FIRST, e.TimeLimitReached))
    assert bench.of(FIRST, *ENDS)


def test_a_user_with_these_rights_alone_can_hand_over(
    make: Make, kubelet_node: KubeletNode
) -> None:
    cluster = kubelet_node.cluster
    cluster.grant(RULES)
    try:
        bench = make(kubeconfig=cluster.user_kubeconfig)
        assert bench.sink.readings[0].products is None  # type: ignore[attr-defined]
        training = bench.script(FIRST, "python3 -c 'import kubernetesdlprofile'; sleep 60")
        training = replace(training, extra=training.extra | {"JOB_UUID": "x"}, checkpoints=str(
            bench.base / "checkpoints/x"), reports=str(bench.base / "training/7.0"),
        )  # fmt: skip
        (bench.base / "checkpoints").mkdir()
        bench.launches[FIRST] = training
        bench.executor.start(training)
        bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
        bench.executor.terminate(FIRST, 20.0)
        assert bench.exit(FIRST).signal == signal.SIGTERM
        assert "Error" not in bench.output(FIRST)
        bench.executor.acknowledge([FIRST])
        bench.until(lambda: not cluster.pods())
    finally:
        cluster.revoke()


def test_a_token_that_expired_is_reported_and_a_new_one_is_used(
    make: Make, tmp_path: Path, kubelet_node: KubeletNode
) -> None:
    own = tmp_path / "kubeconfig"
    valid = kubelet_node.cluster.kubeconfig.read_text()
    own.write_text(valid)
    bench = make(kubeconfig=own)
    bench.executor.start(bench.script(FIRST, "echo 1 >>$HOME/ran; sleep 3; exit 3"))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    own.write_text(valid.replace(kubelet_node.cluster.token, "expired"))
    os.kill(bench.helper(), signal.SIGKILL)
    bench.until(lambda: any("Unauthorized" in why for why in bench.sink.downs))
    own.write_text(valid)
    assert bench.exit(FIRST).code == 3
    assert (bench.home / "ran").read_text() == "1\n"


def test_two_daemons_do_not_touch_the_pods_of_each_other(make: Make, tmp_path: Path) -> None:
    bench = make()
    (tmp_path / "other").mkdir()
    other = HandoverBench(tmp_path / "other", bench.cluster)
    try:
        for each, code in ((bench, 3), (other, 4)):
            each.executor.start(each.script(FIRST, f"sleep 2; exit {code}"))
        bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
        bench.restart(FIRST)
        assert other.exit(FIRST).code == 4
        assert bench.exit(FIRST).code == 3
        assert other.sink.downs == []
    finally:
        other.stop()


def test_a_user_without_rights_is_told_so(
    tmp_path: Path, kubernetes_cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kubernetes_cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(HandoverBench, "until", lambda *_: None)
    bench = HandoverBench(tmp_path, kubernetes_cluster, kubernetes_cluster.user_kubeconfig)
    try:
        super(HandoverBench, bench).until(lambda: bench.sink.downs)
        assert 'cannot list resource "pods"' in bench.sink.downs[0]
    finally:
        bench.stop()


def test_an_attempt_on_a_node_that_is_down_is_not_given_up_before_its_pod_is_gone(
    make: Make, kubelet_node: KubeletNode
) -> None:
    # Of their own: those of the fixture may not have noticed that the server was restarted.
    kubelet_node.cluster.add_fake_nodes(1, prefix="spare")
    bench = make("spare", annotations={"bed/seconds": "forever"})
    bench.executor.start(bench.script(FIRST, ""))
    bench.until(lambda: bench.of(FIRST, e.ProcessStarted))
    (started,) = bench.of(FIRST, e.ProcessStarted)
    node = started.hosts[0]  # type: ignore[attr-defined]
    bench.cluster.set_node_down(node)
    try:
        bench.cluster.kubectl("delete", "pod", bench.pod(FIRST), "--wait=false")
        bench.until(lambda: bench.executor.attempts[bench.pod(FIRST)].pod.is_deleting)  # type: ignore[attr-defined]
        bench.wait(60)
        assert not bench.of(FIRST, *ENDS)
    finally:
        bench.cluster.set_node_down(node, is_down=False)
    bench.cluster.kubectl("delete", "pod", bench.pod(FIRST), "--force", "--wait=false")
    assert isinstance(bench.end(FIRST), e.AttemptLost)


def part_of(bench: HandoverBench, rank: int, gpus: int) -> Launch:
    """Return one part of a gang that needs some GPUs."""
    launch = bench.script(FIRST, f"touch $HOME/ran-{rank}")
    placement = Placement("lab", (DeviceAllocation("gpu", "*", 1000 * gpus),))
    both = replace(placement, other_parts=(placement,))
    return replace(launch, placement=both, out=f"{launch.out}.{rank}")


def test_half_a_gang_gives_up_by_itself_and_the_other_half_is_taken_back(make: Make) -> None:
    bench = make()
    for rank, gpus in enumerate((1, 9)):
        bench.executor.start(part_of(bench, rank, gpus), Barrier(rank, timeout=4))
    bench.until(lambda: bench.sink.ready_parts)
    assert bench.sink.hosts[0].name == "real1"
    assert bench.sink.hosts[0].address.startswith("10.78.")
    bench.until(lambda: any(
        event.reason.startswith("1 of 2 pods run: ")  # type: ignore[attr-defined]
        for event in bench.of(FIRST, e.AttemptQueued)
    ))  # fmt: skip
    (cancelled,) = bench.until(lambda: bench.of(FIRST, *ENDS))
    assert isinstance(cancelled, e.StartCancelled)
    assert cancelled.part == 0
    bench.executor.release(FIRST, 1, None)
    bench.until(lambda: len(bench.of(FIRST, *ENDS)) == 2)
    assert {event.part for event in bench.of(FIRST, e.StartCancelled)} == {0, 1}  # type: ignore[attr-defined]
    assert len(bench.claims()) == 2
    bench.executor.acknowledge([FIRST])
    bench.until(lambda: len(bench.claims()) == 1)
    bench.executor.acknowledge([FIRST])
    bench.until(lambda: not bench.cluster.pods())
    assert not list(bench.home.glob("ran-*"))
    assert not bench.of(FIRST, e.ProcessStarted)
