"""What comes back takes its place, but never that of what was changed here meanwhile."""

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
from stoker.core.job import Carry, Job, Spec
from stoker.core.launch import carrying
from stoker.core.request import Request
from stoker.executors.agent.session.remote_shell import CarryError
from stoker.executors.agent.transfer.result_download import unpack
from stoker.executors.agent.transfer.staging import MUNGED, AttemptWorkspace, StagedResults

WORK = "/.stoker/work/here.12.0"
FILE, LINK, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE


def archive(*members: tuple[str, str], mode: int = 0o644, links: dict[str, str] | None = None,
            directories: tuple[str, ...] = ()) -> bytes:  # fmt: skip
    """A tar of files, of links and of directories."""
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


def owner(label: str = "12_3", **more: Any) -> AttemptWorkspace:
    """A job that began just now."""
    return replace(AttemptWorkspace(label=label, since=tick(), work=WORK), **more)


def tick() -> float:
    """A moment that is later than all changes before and earlier than all after it."""
    now = time.time()
    until(lambda: time.time() > now + 0.02)
    moment = time.time()
    until(lambda: time.time() > moment + 0.02)  # the kernel's clock of files ticks slowly
    return moment


def test_a_file_that_was_changed_here_stays_and_the_jobs_own_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "untouched").write_text("old")
    (tmp_path / "r.csv").write_text("old")
    job = owner()
    (tmp_path / "r.csv").write_text("mine")
    tar = archive(("r.csv", "its"), ("untouched", "new"), ("sub/made", "new"))
    for _ in range(2):  # a daemon that was killed in between does it again
        remark = unpack(tar, str(tmp_path), (), job)
        assert remark == "r.csv was changed locally; the job's version is r.csv.12_3"
        assert (tmp_path / "r.csv").read_text() == "mine"
        assert (tmp_path / "r.csv.12_3").read_text() == "its"
        assert (tmp_path / "untouched").read_text() == "new"
        assert (tmp_path / "sub" / "made").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["r.csv", "r.csv.12_3", "sub", "untouched"]


def test_equal_content_is_no_conflict(tmp_path: Path) -> None:
    job = owner()
    (tmp_path / "r.csv").write_text("same")
    (tmp_path / "link").symlink_to("r.csv")
    tar = archive(("r.csv", "same"), links={"link": "r.csv"})
    assert unpack(tar, str(tmp_path), (), job) is None
    assert sorted(os.listdir(tmp_path)) == ["link", "r.csv"]


def test_jobs_side_by_side_lose_nothing(tmp_path: Path) -> None:
    jobs = [owner(f"12_{index}") for index in range(8)]
    start = threading.Barrier(len(jobs))

    def land(job: AttemptWorkspace) -> str | None:
        start.wait(20)
        return unpack(archive(("out/r.csv", f"row of {job.label}")), str(tmp_path), (), job)

    with ThreadPoolExecutor(len(jobs)) as pool:
        remarks = list(pool.map(land, jobs))
    rows = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert sorted(rows.values()) == [f"row of 12_{index}" for index in range(8)]
    assert remarks.count(None) == 1
    first = remarks.index(None)
    assert rows.pop("r.csv") == f"row of 12_{first}"
    assert all(text == f"row of {name.removeprefix('r.csv.')}" for name, text in rows.items())


def test_every_attempt_and_every_part_finds_a_name(tmp_path: Path) -> None:
    job = owner("12", attempt=1)
    (tmp_path / "r").write_text("mine")
    for text in ("one", "two", "three", "four", "two"):
        unpack(archive(("r", text)), str(tmp_path), (), job)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {
        "r": "mine", "r.12": "one", "r.12.1": "two", "r.12.1.2": "three", "r.12.1.3": "four"
    }  # fmt: skip


def test_several_are_counted(tmp_path: Path) -> None:
    job = owner("7")
    for name in "abc":
        (tmp_path / name).write_text("mine")
    remark = unpack(archive(*((name, "its") for name in "abc")), str(tmp_path), (), job)
    assert remark == (
        "3 files were changed locally; the job's version of a is a.7, of the others likewise"
    )


def test_a_directory_or_a_link_here_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    job = owner("7")
    (tmp_path / "l").symlink_to("elsewhere")
    unpack(archive(("d", "its"), ("l", "its")), str(tmp_path), (), job)
    assert (tmp_path / "d").is_dir()
    assert (tmp_path / "d.7").read_text() == "its"
    assert os.readlink(tmp_path / "l") == "elsewhere"
    assert (tmp_path / "l.7").read_text() == "its"


def test_what_fails_leaves_nothing_on_its_way(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file where a directory should be")
    with pytest.raises(CarryError, match="'d' is a link or a file on this machine; move it away"):
        unpack(archive(("a", "x"), ("d/b", "x")), str(tmp_path), (), owner())
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".stoker")]


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    job = owner(stage="here.12.0")
    (tmp_path / ".stoker-here.12.0").mkdir()
    (tmp_path / ".stoker-here.12.0" / "half").write_text("")
    unpack(archive(("a", "x")), str(tmp_path), (), job)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o664, 0o444])
def test_modes_come_back_whatever_our_umask_is(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        unpack(archive(("sub/a", "x"), mode=mode), str(tmp_path), (), owner(umask=0o002))
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
def test_links_lead_where_they_led(tmp_path: Path, name: str, munged: bool) -> None:
    target, meant = LINKS[name]
    if munged:  # as rsync has it
        with StagedResults(str(tmp_path), owner()) as staged:
            Path(staged.stage, name).parent.mkdir(exist_ok=True)
            Path(staged.stage, name).symlink_to(MUNGED + target)
            staged.install()
            remark = staged.remark()
    else:
        remark = unpack(archive(links={f"./{name}": target}), str(tmp_path), (), owner())
    if meant is None:
        assert not os.path.lexists(tmp_path / name)
        assert remark == f"the link {name} points outside the job directory and was not fetched"
    else:
        assert remark is None
        assert os.readlink(tmp_path / name) == meant


def test_a_link_that_is_here_anyway_is_not_worth_a_word(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/data/set")
    tar = archive(links={"data": "/data/set", "x": "/x", "y": "/y"})
    assert unpack(tar, str(tmp_path), (), owner()) == (
        "2 links point outside the job directory and were not fetched, for example x"
    )
    assert os.readlink(tmp_path / "data") == "/data/set"


def test_empty_directories_come_back(tmp_path: Path) -> None:
    unpack(archive(directories=("./empty/inside",)), str(tmp_path), (), owner())
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
def test_where_results_go_is_filled_in(into: str | None, meant: str | None) -> None:
    spec = Spec(
        kind="line", user="ana", directory="/d", shell="sh", environment="", request=Request(),
        name="my/job", carry=Carry(into=into),
    )  # fmt: skip
    job = Job(id=15, spec="", name="my/job", user="ana", submitted_at=0.0, array=12, index=3)
    assert carrying(job, spec, "gpu1", 1).into == meant
