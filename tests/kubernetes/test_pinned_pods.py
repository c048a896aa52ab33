"""Jobs with an image beside pilots on a real kubelet: pods that share the pilot's GPUs."""

from pathlib import Path
from typing import Any

import pytest

from e2e.daemon_fixture import DaemonFixture, kill, until
from kubernetes.actions import WAIT_SECONDS, add_cluster, nodes, pilots, says
from kubernetes.kubelet_node import IMAGE, KubeletNode
from kubernetes.python_image import PILOT_TOOLS
from kubernetes.test_run_scheduler import typed
from ssh.gpus import NVIDIA_SMI, write_gpus

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

TRAIN = """\
import os, time
from pathlib import Path
from kubernetesdlprofile import kubeprofiler
prof = kubeprofiler.KubeProfiler()
path = Path(prof.root_dir, 'model')
done = path.read_text() if prof.RESTARTED else ''
seen = os.environ['NVIDIA_VISIBLE_DEVICES']
assert seen == os.environ['CUDA_VISIBLE_DEVICES']
print('begins', prof.EPOCHS_DONE, seen, os.environ['RESERVED_MEM'], flush=True)
for epoch in range(prof.EPOCHS_DONE, prof.EPOCHS):
    prof.start_epoch()
    prof.measure()
    while not Path(f'/custom/{os.environ["STOKER_JOB_ID"]}.{epoch}').exists():
        time.sleep(0.05)
    prof.end_epoch()
    done += f'{epoch} '
    path.write_text(done)
print('trained', done, flush=True)
"""
"""An epoch ends when the test lets it."""
RESIZE_SECONDS = 150.0
"""A number of GPUs is kept for a minute."""
STOP = "/stoker/reports/stop"
STEADY = TRAIN.replace("while not Path", "time.sleep(1)\n    while False and not Path")


def image_with_gpus(node: KubeletNode, base: Path, count: int) -> tuple[str, list[str]]:
    """Let pods use an image whose nvidia-smi lists GPUs; return its name and their UUIDs."""
    name, tables = f"localhost/gpus:{count}", base / f"gpus-{count}"
    tables.mkdir()
    uuids = write_gpus(tables, [{}] * count, [])
    if name not in node._ctr("-n", "k8s.io", "images", "ls", "-q").stdout:
        files = {f"/usr/{table}": (tables / table).read_text() for table in ("gpus", "apps")}
        node.import_image(name, PILOT_TOOLS, files, trees={"/usr/bin/nvidia-smi": NVIDIA_SMI})
    return name, uuids


class Lab:
    """A daemon with a cluster of pilots, and jobs with an image."""

    def __init__(self, node: KubeletNode, box: DaemonFixture, base: Path) -> None:
        self.node, self.box, self.base = node, box, base
        for name in ("code", "snapshots"):
            (box.user / name).mkdir(parents=True)

    def add(self, *options: str, gpus: int = 1, pilots: int = 1) -> None:
        self.image, self.uuids = image_with_gpus(self.node, self.base, gpus)
        home = str(self.box.home.parent)
        pilot = f"gpus={gpus} vram=16G image={self.image} cores=1 max={pilots} idle=60s"
        add_cluster(self.box, "--volume", f"{home}=hostPath:{home}", *options, pilot=pilot)

    def run(self, *words: str, script: str = TRAIN, image: str = "") -> str:
        """Submit a script with the guide's command; return the job id."""
        self.box.script("code/train.py", script)
        done = typed(
            self.box, "run-scheduler", "--image_name", image or self.image, "--script_path",
            "/custom/train.py", "--custom_dir", str(self.box.user / "code"), "--snapshots_dir",
            str(self.box.user / "snapshots"), *words, "first_try",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().rpartition("-")[2]

    def end_epochs(self, job: str, *epochs: int) -> None:
        for epoch in epochs:
            (self.box.user / f"code/{job}.{epoch}").touch()

    def pods(self, job: str = "") -> dict[str, Any]:
        """Return the pods beside the pilot."""
        return {
            name: pod
            for name, pod in self.node.cluster.pods().items()
            if "stoker.dev/host" in pod["metadata"]["labels"]
            and job in ("", pod["metadata"]["labels"]["stoker.dev/job"])
        }

    def pilot(self) -> dict[str, Any]:
        (pod,) = (
            pod
            for pod in self.node.cluster.pods().values()
            if "stoker.dev/pilot" in pod["metadata"]["labels"]
        )
        return dict(pod)

    def ran(self) -> list[str]:
        """Return the jobs that ran, once for each run."""
        path = self.box.user / "code/ran"
        return path.read_text().split() if path.exists() else []

    def wait_for_stop(self, job: str) -> None:
        """Wait until a stop request has reached the pod of a job."""

        def has_arrived() -> bool:
            (name,) = self.pods(job)
            return self.node.cluster.succeeds("exec", name, "--", "ls", STOP)

        until(has_arrived, WAIT_SECONDS)

    def uses(self, memory: int) -> None:
        """Let the driver in the pilot say that the memory of its GPU is used."""
        tables = self.base / "used"
        tables.mkdir()
        write_gpus(tables, [{"uuid": self.uuids[0], "memory.used": memory}], [])
        name = self.pilot()["metadata"]["name"]
        text = (tables / "gpus").read_text()
        self.node.cluster.kubectl("exec", name, "--", "sh", "-c", f"printf %s '{text}' >/usr/gpus")

    def epochs_done(self, job: str) -> int:
        return int(self.box.job(job)["training"]["epochs_done"])

    def end(self, job: str) -> dict[str, Any]:
        end: dict[str, Any] = self.box.end_of(job, WAIT_SECONDS)
        assert end["result"] == 0, (end, self.box.log)
        return end

    def outputs(self, job: str) -> str:
        """Return the output of all attempts of a job."""
        paths = Path(self.box.job(job)["log"]).parent.glob(f"{job}.*out")
        return "".join(path.read_text() for path in sorted(paths))


@pytest.fixture
def lab(real: KubeletNode, idle: DaemonFixture, tmp_path: Path) -> Lab:
    return Lab(real, idle, tmp_path)


def test_two_programs_share_a_gpu_by_memory_and_survive_the_daemon(lab: Lab) -> None:
    lab.add()
    jobs = [lab.run("--estimated_memory", "6000", "--max_epochs", "2") for _ in range(3)]
    for job in jobs[:2]:
        says(lab.box, int(job), f"begins 0 {lab.uuids[0]} 6000\n")
    assert lab.box.job(jobs[2])["state"] == "PENDING"
    assert {lab.box.job(job)["node"] for job in jobs[:2]} == {"lab-1"}
    assert len(lab.pods()) == 2
    for pod in lab.pods().values():
        (container,) = pod["spec"]["containers"]
        assert "nvidia.com/gpu" not in str(container["resources"])
        assert pod["spec"]["nodeName"] == lab.pilot()["spec"]["nodeName"]
    kill(lab.box.pid)
    lab.end_epochs(jobs[0], 0, 1)
    lab.end_epochs(jobs[1], 0)
    lab.box.up()
    lab.end(jobs[0])
    says(lab.box, int(jobs[2]), "begins 0")
    lab.end_epochs(jobs[1], 1)
    lab.end_epochs(jobs[2], 0, 1)
    for job in jobs:
        assert lab.end(job)["attempt"] == 0
        assert lab.outputs(job).count("begins") == 1
        assert "trained 0 1 \n" in lab.outputs(job)
    until(lambda: not lab.pods(), WAIT_SECONDS)
    lab.pilot()


def test_a_program_shares_by_the_memory_that_was_measured(lab: Lab) -> None:
    lab.add()
    job = lab.run("--max_epochs", "3")
    says(lab.box, int(job), "begins 0")
    other = lab.run("--estimated_memory", "6000", "--max_epochs", "1")
    assert lab.box.job(other)["state"] == "PENDING"
    lab.uses(5000)
    until(lambda: lab.box.job(job)["training"]["memory_peak"] == 5000, WAIT_SECONDS)
    lab.end_epochs(job, 0)
    says(lab.box, int(other), "begins 0")
    assert lab.box.job(job)["state"] == "RUNNING"
    lab.end_epochs(job, 1, 2)
    lab.end_epochs(other, 0)
    for each in (job, other):
        lab.end(each)


def test_a_higher_priority_preempts_at_the_next_epoch(lab: Lab) -> None:
    lab.add()
    job = lab.run("--disable_gpu_sharing", "true", "--max_epochs", "3")
    says(lab.box, int(job), "begins 0")
    urgent = lab.box.submit(
        "--priority", "9", "--gpus", "1", "--exclusive-gpu", "--image", lab.image, "--no-send",
        "--wrap", "echo first",
    )  # fmt: skip
    lab.wait_for_stop(job)
    lab.end_epochs(job, 0)
    assert lab.box.end_of(urgent, WAIT_SECONDS)["result"] == 0
    assert "first" in lab.box.output(urgent)
    lab.end_epochs(job, 1, 2)
    lab.end(job)
    begins = [line.split()[1] for line in lab.outputs(job).splitlines() if "begins" in line]
    assert sorted(begins) == ["0", "1"]
    assert "trained 0 1 2 \n" in lab.outputs(job)


def test_the_number_of_gpus_grows_and_shrinks(lab: Lab) -> None:
    lab.add(gpus=2)
    options = ("--is_single_gpu", "false", "--disable_gpu_sharing", "true")
    job = lab.run(*options, "--max_epochs", "600", script=STEADY)
    both = ",".join(lab.uuids)
    says(lab.box, int(job), f" {both} ")
    other = lab.box.submit(
        "--priority", "9", "--gpus", "1", "--exclusive-gpu", "--image", lab.image, "--no-send",
        "--wrap", "echo other; until [ -e /tmp/go ]; do sleep 0.1; done",
    )  # fmt: skip
    until(lambda: lab.box.job(other)["state"] == "RUNNING", RESIZE_SECONDS)
    until(lambda: lab.box.job(job)["state"] == "RUNNING", WAIT_SECONDS)
    assert len(lab.box.job(job)["devices"]["gpu"]) == 1
    lab.box.stoker("cancel", other)
    until(lambda: lab.outputs(job).count(f" {both} ") == 2, RESIZE_SECONDS)
    lab.box.stoker("cancel", job)
    lab.box.end_of(job, WAIT_SECONDS)


def test_a_pilot_that_is_deleted_takes_its_pods_with_it(lab: Lab) -> None:
    lab.add()
    job = lab.run("--max_epochs", "3")
    says(lab.box, int(job), "begins 0")
    lab.end_epochs(job, 0)
    until(lambda: lab.epochs_done(job) == 1, WAIT_SECONDS)
    (first,) = lab.pods()
    pilot = lab.pilot()["metadata"]["name"]
    lab.node.cluster.kubectl("delete", "pod", pilot, "--grace-period=0", "--force")
    until(lambda: lab.box.job(job)["attempt"] == 1, 2 * WAIT_SECONDS)
    assert first not in lab.pods()
    lab.end_epochs(job, 1, 2)
    lab.end(job)
    assert "trained 0 1 2 \n" in lab.outputs(job)
    assert lab.box.job(job)["attempt"] == 1


def test_a_pilot_that_is_deleted_has_its_jobs_stop_at_a_checkpoint(lab: Lab) -> None:
    lab.add()
    job = lab.run("--max_epochs", "3")
    says(lab.box, int(job), "begins 0")
    lab.node.cluster.kubectl("delete", "pod", lab.pilot()["metadata"]["name"], "--wait=false")
    lab.wait_for_stop(job)
    lab.end_epochs(job, 0, 1, 2)
    lab.end(job)
    begins = [line.split()[1] for line in lab.outputs(job).splitlines() if "begins" in line]
    assert sorted(begins) == ["0", "1"]
    assert "trained 0 1 2 \n" in lab.outputs(job)


def test_a_daemon_that_is_killed_again_and_again_runs_each_job_once(lab: Lab) -> None:
    lab.add()
    mount = f"{lab.box.user}/code:/custom"
    line = "echo $STOKER_JOB_ID >>/custom/ran; sleep 1"
    jobs = [
        lab.box.submit(
            "--gpus", "1", "--image", lab.image, "--no-send", "--mount", mount, "--wrap", line
        )
        for _ in range(5)
    ]  # fmt: skip
    for count in range(1, 5):
        until(lambda n=count: len(lab.ran()) >= n, 2 * WAIT_SECONDS)
        kill(lab.box.pid)
        lab.box.up()
    for job in jobs:
        lab.end(job)
    assert sorted(lab.ran()) == sorted(map(str, jobs))


def test_the_removal_of_a_cluster_removes_its_pods(lab: Lab) -> None:
    lab.add()
    job = lab.run("--max_epochs", "1")
    says(lab.box, int(job), "begins 0")
    assert lab.box.stoker("nodes", "remove", "lab", "--force").returncode == 0
    until(lambda: not lab.node.cluster.pods(), WAIT_SECONDS)


def test_the_parts_of_a_gang_meet_beside_two_pilots(lab: Lab) -> None:
    lab.add(pilots=2)
    job = lab.box.submit(
        "-N", "2", "--gpus-per-node", "1", "--image", lab.image, "--no-send", "--wrap",
        "echo $NODE_RANK of $WORLD_SIZE at $MASTER_ADDR; sleep 1",
    )  # fmt: skip
    until(lambda: len(lab.pods()) == 2, WAIT_SECONDS)
    names = sorted(lab.pods())
    until(lambda: lab.pods()[names[0]]["status"].get("podIP"), WAIT_SECONDS)
    address = lab.pods()[names[0]]["status"]["podIP"]
    lab.end(job)
    for part in range(2):
        log = lab.box.stoker("logs", "--part", str(part), job).stdout
        assert log == f"{part} of 2 at {address}\n"
    assert {part["node"] for part in lab.box.job(job)["parts"]} == {"lab-1", "lab-2"}


def test_an_image_that_does_not_see_the_gpus_is_handed_over(lab: Lab) -> None:
    lab.add("--ahead", "2")
    job = lab.run("--max_epochs", "1", script="import os; print(os.environ)", image=IMAGE)
    end = lab.box.end_of(job, 2 * WAIT_SECONDS)
    assert (end["result"], end["node"]) == (0, "lab-jobs"), lab.box.log
    assert "NVIDIA_VISIBLE_DEVICES" not in lab.box.output(job)
    assert nodes(lab.box)["lab-1"]["state"] == "up"
    assert pilots(lab.box)
