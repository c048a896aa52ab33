"""Results are installed, but never over files that were changed locally meanwhile."""

import io
import os
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from e2e.daemon_fixture import until
from stoker.core.launch.launch import transfer_of
from stoker.core.model.job import Job
from stoker.core.model.resources import ResourceRequest
from stoker.core.model.spec import FileTransfer, Spec
from stoker.executors.agent.session.remote_shell import CarryError
from stoker.executors.agent.transfer.result_download import unpack
from stoker.executors.agent.transfer.staging import MUNGED, AttemptWorkspace, StagedResults

WORK = "/.stoker/work/here.12.0"
FILE, LINK, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE


def archive(*members: tuple[str, str], mode: int = 0o644, links: dict[str, str] | None = None,
            directories: tuple[str, ...] = ()) -> bytes:  # fmt: skip
    """Return a tar with these files, links and directories."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, kind, text in (
            *((name, FILE, text) for name, text in members),
            *((name, LINK, target) for name, target in (links or {}).items()),
            *((name, DIRECTORY, "") for name in directories),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            if kind == LINK:
                info.linkname = text
            elif kind == FILE:
                info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


def workspace(label: str = "12_3", **more: Any) -> AttemptWorkspace:
    """Return the workspace of a job that has just begun."""
    return replace(AttemptWorkspace(label=label, since=tick(), work=WORK), **more)


def tick() -> float:
    """Return a time after all earlier changes of files and before all later ones."""
    now = time.time()
    until(lambda: time.time() > now + 0.02)
    moment = time.time()
    until(lambda: time.time() > moment + 0.02)  # file times of the kernel are coarse
    return moment


def test_a_locally_changed_file_stays_and_the_jobs_version_gets_another_name(
    tmp_path: Path,
) -> None:
    (tmp_path / "untouched").write_text("old")
    (tmp_path / "r.csv").write_text("old")
    job = workspace()
    (tmp_path / "r.csv").write_text("mine")
    tar = archive(("r.csv", "its"), ("untouched", "new"), ("sub/made", "new"))
    for _ in range(2):  # a daemon that was killed meanwhile repeats it
        remark = unpack(tar, str(tmp_path), (), job)
        assert remark == "r.csv was changed locally; the job's version is r.csv.12_3"
        assert (tmp_path / "r.csv").read_text() == "mine"
        assert (tmp_path / "r.csv.12_3").read_text() == "its"
        assert (tmp_path / "untouched").read_text() == "new"
        assert (tmp_path / "sub" / "made").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["r.csv", "r.csv.12_3", "sub", "untouched"]


def test_equal_content_is_no_conflict(tmp_path: Path) -> None:
    job = workspace()
    (tmp_path / "r.csv").write_text("same")
    (tmp_path / "link").symlink_to("r.csv")
    tar = archive(("r.csv", "same"), links={"link": "r.csv"})
    assert unpack(tar, str(tmp_path), (), job) is None
    assert sorted(os.listdir(tmp_path)) == ["link", "r.csv"]


def test_results_of_concurrent_jobs_are_all_kept(tmp_path: Path) -> None:
    jobs = [workspace(f"12_{index}") for index in range(8)]
    start = threading.Barrier(len(jobs))

    def install(job: AttemptWorkspace) -> str | None:
        start.wait(20)
        return unpack(archive(("out/r.csv", f"row of {job.label}")), str(tmp_path), (), job)

    with ThreadPoolExecutor(len(jobs)) as pool:
        remarks = list(pool.map(install, jobs))
    rows = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert sorted(rows.values()) == [f"row of 12_{index}" for index in range(8)]
    assert remarks.count(None) == 1
    first = remarks.index(None)
    assert rows.pop("r.csv") == f"row of 12_{first}"
    assert all(text == f"row of {name.removeprefix('r.csv.')}" for name, text in rows.items())


def test_every_attempt_and_every_part_gets_its_own_name(tmp_path: Path) -> None:
    job = workspace("12", attempt=1)
    (tmp_path / "r").write_text("mine")
    for text in ("one", "two", "three", "four", "two"):
        unpack(archive(("r", text)), str(tmp_path), (), job)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {
        "r": "mine", "r.12": "one", "r.12.1": "two", "r.12.1.2": "three", "r.12.1.3": "four"
    }  # fmt: skip


def test_several_conflicts_are_counted_in_the_remark(tmp_path: Path) -> None:
    job = workspace("7")
    for name in "abc":
        (tmp_path / name).write_text("mine")
    remark = unpack(archive(*((name, "its") for name in "abc")), str(tmp_path), (), job)
    assert remark == (
        "3 files were changed locally; the job's version of a is a.7, of the others likewise"
    )


def test_a_local_directory_or_link_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    job = workspace("7")
    (tmp_path / "l").symlink_to("elsewhere")
    unpack(archive(("d", "its"), ("l", "its")), str(tmp_path), (), job)
    assert (tmp_path / "d").is_dir()
    assert (tmp_path / "d.7").read_text() == "its"
    assert os.readlink(tmp_path / "l") == "elsewhere"
    assert (tmp_path / "l.7").read_text() == "its"


def test_a_failed_installation_leaves_no_staging_directory(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file where a directory should be")
    with pytest.raises(CarryError, match="'d' is a link or a file on this machine; move it away"):
        unpack(archive(("a", "x"), ("d/b", "x")), str(tmp_path), (), workspace())
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".stoker")]


def test_the_staging_directory_of_a_crash_is_removed(tmp_path: Path) -> None:
    job = workspace(stage="here.12.0")
    (tmp_path / ".stoker-here.12.0").mkdir()
    (tmp_path / ".stoker-here.12.0" / "half").write_text("")
    unpack(archive(("a", "x")), str(tmp_path), (), job)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o664, 0o444])
def test_modes_are_kept_with_any_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        unpack(archive(("sub/a", "x"), mode=mode), str(tmp_path), (), workspace(umask=0o002))
    finally:
        os.umask(before)
    assert (tmp_path / "sub" / "a").stat().st_mode & 0o7777 == mode
    assert (tmp_path / "sub").stat().st_mode & 0o7777 == 0o775


HOME = f"/home/me{WORK}"
LINKS = {
    "plain": ("a", "a"),
    "top": (f"{HOME}/a", "a"),
    "sub/up": (f"{HOME}/a", "../a"),
    "sub/beside": (f"{HOME}/sub/b", "b"),
    "all": (HOME, "."),
    "sub/all": (f"{HOME}/", ".."),
    "data": ("/data/set", None),
    "other": (f"{HOME}9/a", None),
    "out": (f"{HOME}/../here.13.0/a", None),
    "above": ("../x", None),
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("munged", [True, False])
def test_links_keep_their_targets(tmp_path: Path, name: str, munged: bool) -> None:
    target, meant = LINKS[name]
    if munged:  # as rsync writes it
        with StagedResults(str(tmp_path), workspace()) as staged:
            Path(staged.stage, name).parent.mkdir(exist_ok=True)
            Path(staged.stage, name).symlink_to(MUNGED + target)
            staged.install()
            remark = staged.remark()
    else:
        remark = unpack(archive(links={f"./{name}": target}), str(tmp_path), (), workspace())
    if meant is None:
        assert not os.path.lexists(tmp_path / name)
        assert remark == f"the link {name} points outside the job directory and was not fetched"
    else:
        assert remark is None
        assert os.readlink(tmp_path / name) == meant


def test_a_link_that_exists_locally_is_not_mentioned(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/data/set")
    tar = archive(links={"data": "/data/set", "x": "/x", "y": "/y"})
    assert unpack(tar, str(tmp_path), (), workspace()) == (
        "2 links point outside the job directory and were not fetched, for example x"
    )
    assert os.readlink(tmp_path / "data") == "/data/set"


def test_empty_directories_are_installed(tmp_path: Path) -> None:
    unpack(archive(directories=("./empty/inside",)), str(tmp_path), (), workspace())
    assert (tmp_path / "empty" / "inside").is_dir()


@pytest.mark.parametrize(
    ("into", "meant"),
    [
        (None, None),
        ("/r", "/r"),
        ("/r/%A/%a", "/r/12/3"),
        ("/r/%j-%x-%N-%t-%u", "/r/15-my_job-gpu1-1-ana"),
        ("/100%%/%q", "/100%/%q"),
    ],
)
def test_placeholders_in_the_results_directory_are_filled_in(
    into: str | None, meant: str | None
) -> None:
    spec = Spec(
        kind="line",
        user="ana",
        directory="/d",
        shell="sh",
        environment="",
        request=ResourceRequest(),
        name="my/job",
        transfer=FileTransfer(into=into),
    )
    job = Job(id=15, spec="", name="my/job", user="ana", submitted_at=0.0, array=12, index=3)
    assert transfer_of(job, spec, "gpu1", 1).into == meant
