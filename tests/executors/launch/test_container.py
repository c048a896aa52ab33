"""Command lines of container engines: composed in Python, completed by container.sh."""

import json
import os
import pwd
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from specs import launch_of
from stoker.core.launch.launch import Launch
from stoker.core.model.spec import Container, Mount
from stoker.executors.launch import container
from stoker.executors.launch import training_library as library

LAUNCH = launch_of(
    attempt=1, argv=("python", "x.py", "a b"), directory="/d",
    extra={
        "STOKER_TOKEN": "here.7.1", "STOKER_GPUS": "", "STOKER_NODES": "a",
        "STOKER_NODE_RANK": "0", "CUDA_VISIBLE_DEVICES": "", "STOKER_REPORTS": "/h/training/7.1",
    },
    out="/o", exported_variables=("LR",),
    container=Container("img:1"), reports="/h/training/7.1", checkpoints="/h/checkpoints/here-7",
)  # fmt: skip
ENGINE = """\
#!/bin/sh
me=${0##*/}
case $1 in
    --version) echo "$me version 1" ;;
    version) case $BROKEN in *$me*) exit 1 ;; esac ;;
    image)
        case $HAVE_IMAGE in *$me*) ;; *) exit 1 ;; esac
        printf 'PATH=/bin\\nPYTHONPATH=/of/the/image\\n'
        ;;
    pull)
        echo "no route to the registry" >&2
        exit 125
        ;;
    run)
        echo "$me"
        for _each; do echo "word $_each"; done
        env
        exit 3
        ;;
esac
"""
EngineCall = dict[str, Any]


def words_of(launch: Launch, **more: Any) -> tuple[str, ...]:
    argv, _ = container.command(launch, "/h/library/1", 10.0, **more)
    return argv[argv.index("stoker-container") + 1 :]


def mounts(launch: Launch) -> dict[str, str]:
    words = words_of(launch)
    engine_output = {}
    for n, word in enumerate(words):
        if word == "+require":
            engine_output[words[n + 2]] = words[n + 3]
        elif word == "+optional":
            engine_output[words[n + 1]] = f"perhaps {words[n + 3]}"
    return engine_output


def inner(launch: Launch, **more: Any) -> tuple[str, ...]:
    words = words_of(launch, **more)
    return words[words.index("+run") + 2 :]


def test_a_command_is_passed_unchanged() -> None:
    words = words_of(LAUNCH, engine="docker")
    assert words[:6] == ("docker", "stoker-here.7.1", "img:1", "8", "image", "")
    assert inner(LAUNCH) == ("python", "x.py", "a b")
    assert "--workdir=/d" in words
    away = replace(LAUNCH, container=Container("img:1", in_job_directory=False))
    assert not any("/d" in word for word in words_of(away)[6:-4])


def test_a_line_runs_in_the_users_shell_if_the_image_has_it() -> None:
    line = replace(LAUNCH, is_shell_line=True, argv=("/bin/sh", "-c", "a; b"))
    assert inner(line) == ("sh", "-c", "a; b")
    words = inner(replace(line, argv=("/usr/bin/bash", "-c", "a; b")))
    assert words[0] == "sh"
    assert words[-3:] == ("bash", "-c", "a; b")


def test_a_script_is_mounted_and_run() -> None:
    script = replace(LAUNCH, script="abc", argv=("/s/abc", "1"))
    assert inner(script, script="/s/abc") == ("/stoker/job", "1")
    read = replace(script, argv=("/bin/sh", "/s/abc", "1"))
    assert inner(read, script="/s/abc") == ("sh", "/stoker/job", "1")
    assert "type=bind,source=/s/abc,target=/stoker/job,readonly" in " ".join(
        words_of(script, script="/s/abc")
    )


def test_variables_are_passed_by_name_only() -> None:
    words = words_of(LAUNCH)
    named = {word for word in words if word.startswith("--env=")}
    assert {"--env=LR", "--env=STOKER_TOKEN", "--env=PYTHONPATH"} <= named
    assert "--env=MASTER_ADDR" not in named
    assert not any("=" in word.removeprefix("--env=") for word in named)
    assert "--env=PATH" not in named
    _, extra = container.command(LAUNCH, None, 10.0)
    assert extra == {
        "STOKER_CONTAINER": "stoker-here.7.1",
        "STOKER_REPORTS": "/stoker/reports",
        "STOKER_CHECKPOINT_DIR": "/snapshots/here-7",
    }


def test_checkpoints_and_the_users_directory_are_mounted() -> None:
    ours = mounts(LAUNCH)
    assert ours["/snapshots/here-7"].endswith(
        "source=/h/checkpoints/here-7,target=/snapshots/here-7"
    )
    users = mounts(replace(LAUNCH, checkpoints="/my/snaps/here-7", has_own_checkpoints=False))
    assert users["/snapshots"].endswith("source=/my/snaps,target=/snapshots")
    assert "/snapshots/here-7" not in users


def test_mounts_are_quoted_and_those_of_the_user_win() -> None:
    launch = replace(
        LAUNCH,
        container=Container(
            "img:1",
            (Mount('/a,"b', "/custom"), Mount("/q", "/d", True), Mount("/x", "/data", False, True)),
        ),
    )
    engine_output = mounts(launch)
    assert engine_output["/custom"] == '--mount=type=bind,"source=/a,""b",target=/custom'
    assert engine_output["/d"] == "--mount=type=bind,source=/q,target=/d,readonly"
    assert engine_output["/x"] == "perhaps --mount=type=bind,source=/x,target=/data"


def test_ports_are_published_and_gangs_use_the_host_network() -> None:
    launch = replace(LAUNCH, container=Container("img:1", ports=((31346, 6006), (1, 2))))
    assert [option for option in words_of(launch) if "publish" in option] == [
        "--publish=31346:6006", "--publish=1:2",
    ]  # fmt: skip
    several = replace(launch, extra=launch.extra | {"STOKER_NODES": "a,b", "STOKER_NODE_RANK": "1"})
    words = words_of(several)
    assert "--network=host" in words
    assert "--env=MASTER_ADDR" in words
    assert words[1] == "stoker-here.7.1-1"
    assert not any("publish" in option for option in words)


def test_a_missing_engine_is_noticed_without_starting_a_process(tmp_path: Path) -> None:
    path = {"PATH": str(tmp_path)}
    assert container.absent(path, "") == container.ABSENT
    assert "nerdctl is not installed on this node" in str(container.absent(path, "nerdctl"))
    assert container.absent(path, "sh", ["PATH"]) is None, "a PATH for the inside is not ours"
    (tmp_path / "docker").write_text("")
    (tmp_path / "docker").chmod(0o755)
    assert container.absent(path, "") is None


# ------------------------------------------- the script, with engines that print their arguments


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    bin = tmp_path / "bin"
    bin.mkdir()

    def run(
        launch: Launch, *programs: str, before: tuple[str, ...] = (), **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        for program in programs:
            (bin / program).write_text(ENGINE)
            (bin / program).chmod(0o755)
        launch = replace(
            launch, directory=str(tmp_path), reports=f"{tmp_path}/reports",
            checkpoints=f"{tmp_path}/checkpoints/here-7",
        )  # fmt: skip
        argv, extra = container.command(launch, str(tmp_path), 10.0)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "NVIDIA"))}
        variables = {"HAVE_IMAGE": "podman docker", "LR": "0.1", "PYTHONPATH": "/host", **variables}
        path = f"{bin}:{os.environ['PATH']}"
        return subprocess.run(
            [*before, *argv], env={**clean, "PATH": path, **launch.extra, **extra, **variables},
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip

    return run


Running = Callable[..., "subprocess.CompletedProcess[str]"]


def engine_call(done: "subprocess.CompletedProcess[str]") -> EngineCall:
    assert done.returncode == 3, done.stderr
    engine, *lines = done.stdout.splitlines()
    words = [line.removeprefix("word ") for line in lines if line.startswith("word ")]
    pairs = (line.partition("=") for line in lines if not line.startswith("word "))
    return {
        "engine": engine,
        "words": words,
        "environment": {name: value for name, _, value in pairs},
    }


def test_variables_of_the_script_do_not_overwrite_those_of_the_job(run: Running) -> None:
    text = container.wrapper()
    used = set(re.findall(r"\b([a-z_]+)=|for ([a-z_]+) in|\bread -r ([a-z_ ]+);", text))
    words = {word.lstrip("_") for patterns in used for word in " ".join(patterns).split()} - {""}
    assert {"name", "engine", "key", "variable"} <= words
    mine = dict.fromkeys(words, "mine")
    environment = engine_call(
        run(launch_of(LAUNCH, exported_variables=tuple(words)), "podman", **mine)
    )["environment"]
    assert {word: environment[word] for word in words} == mine
    line = replace(LAUNCH, argv=("/bin/zsh", "-c", "echo $shell"), is_shell_line=True)
    done = subprocess.run(
        inner(line), env={"PATH": os.environ["PATH"], "shell": "mine"},
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.stdout == "mine\n"


def test_variables_that_the_engine_reads_are_passed_as_options(run: Running) -> None:
    mine = {"TMPDIR": "/no such/$x", "HOME": "/home/x", "LD_LIBRARY_PATH": "/l"}
    engine_output = engine_call(
        run(launch_of(LAUNCH, exported_variables=(*mine, "PATH", "LR")), "podman", **mine)
    )
    assert {f"--env={name}={value}" for name, value in mine.items()} <= set(engine_output["words"])
    assert "--env=LR" in engine_output["words"]
    environment = engine_output["environment"]
    assert environment["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    assert not {"TMPDIR", "LD_LIBRARY_PATH"} & set(environment)
    path = next(word for word in engine_output["words"] if word.startswith("--env=PATH="))
    assert environment["PATH"] == path.removeprefix("--env=PATH=") + f":{container.USUAL_PATH}"


def test_the_engine_that_has_the_image_runs_it(run: Running) -> None:
    assert engine_call(run(LAUNCH, "podman", "docker"))["engine"] == "podman"
    assert engine_call(run(LAUNCH, "podman", "docker", HAVE_IMAGE="docker"))["engine"] == "docker"


def test_an_image_that_cannot_be_fetched_is_reported(run: Running) -> None:
    done = run(LAUNCH, "podman", "docker", HAVE_IMAGE="", BROKEN="podman")
    assert done.returncode == 125
    fetching, why, sentence = done.stderr.splitlines()
    assert fetching == "stoker: fetching the image img:1 with docker"
    assert why == "no route to the registry"
    assert sentence.startswith(
        "stoker: cannot run here: the image img:1 is not on this node and could not be"
    )


def test_engines_that_do_not_answer_are_reported(run: Running) -> None:
    done = run(LAUNCH, "podman", "docker", HAVE_IMAGE="", BROKEN="podman docker")
    assert done.returncode == 125
    assert done.stderr.startswith(
        "stoker: cannot run here: neither podman nor docker answers on this node; leave"
    )


def test_the_arguments_of_run(run: Running, tmp_path: Path) -> None:
    launch = replace(
        LAUNCH, container=Container("img:1", (Mount("/gone", "/data", optional=True),))
    )
    engine_output = engine_call(run(launch, "podman"))
    words = engine_output["words"]
    assert words[0] == "run"
    assert {"--rm", "--sig-proxy=false", "--http-proxy=false"} <= set(words)
    assert words[words.index("--name") + 1] == "stoker-here.7.1"
    assert words[-4:] == ["img:1", "python", "x.py", "a b"]
    assert not any("/gone" in word or word.startswith("+") for word in words)
    assert engine_output["environment"]["PYTHONPATH"] == "/stoker/lib:/of/the/image"
    assert engine_output["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert (tmp_path / "reports").stat().st_mode & 0o777 == 0o777
    with_path = engine_call(run(launch_of(launch, exported_variables=("PYTHONPATH",)), "podman"))
    assert with_path["environment"]["PYTHONPATH"] == "/stoker/lib:/host"


def test_a_missing_required_directory_fails_the_job(run: Running) -> None:
    launch = replace(LAUNCH, container=Container("img:1", (Mount("/gone", "/custom"),)))
    done = run(launch, "podman")
    assert done.returncode == 125
    assert done.stderr == (
        "stoker: cannot run here: /gone, to be mounted at /custom in the container, does "
        "not exist\n"
    )


def test_a_missing_optional_directory_is_reported(run: Running) -> None:
    mount = Mount("/gone", "/data", optional=True)
    launch = replace(LAUNCH, container=Container("img:1", (mount,)))
    assert run(launch, "podman").stderr == ""
    launch = replace(LAUNCH, container=Container("img:1", (replace(mount, expected=True),)))
    sentence = "/gone is not on this node, so there is no /data in the container"
    assert run(launch, "podman").stderr == f"stoker: {sentence}\n"


UUIDS = ("GPU-aaaa", "GPU-bbbb")
WITH_GPUS = replace(
    LAUNCH,
    gpus=UUIDS,
    extra=LAUNCH.extra | {"STOKER_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"},
)


def test_gpus_by_the_option_of_docker(run: Running) -> None:
    engine_output = engine_call(
        run(WITH_GPUS, "docker", "nvidia-container-cli", HAVE_IMAGE="docker")
    )
    assert '--gpus="device=GPU-aaaa,GPU-bbbb"' in engine_output["words"]
    assert engine_output["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
    assert engine_output["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_gpus_by_variables_if_the_engine_has_no_option(run: Running) -> None:
    engine_output = engine_call(run(WITH_GPUS, "docker", HAVE_IMAGE="docker"))
    assert engine_output["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
    assert engine_output["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
    numbered = engine_call(run(replace(WITH_GPUS, gpus=()), "docker", HAVE_IMAGE="docker"))
    assert numbered["environment"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert numbered["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"


@pytest.mark.parametrize(
    ("names", "devices"),
    [
        (["2", "3", "all"], ["nvidia.com/gpu=2", "nvidia.com/gpu=3"]),
        (["2", "3", *UUIDS], ["nvidia.com/gpu=GPU-aaaa", "nvidia.com/gpu=GPU-bbbb"]),
        (["2", UUIDS[0]], []),
    ],
)
def test_gpus_by_the_container_device_interface(
    run: Running, tmp_path: Path, names: list[str], devices: list[str]
) -> None:
    """The CDI specifications of this host are replaced during the test."""
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": n} for n in names],
    }
    (tmp_path / "nvidia.json").write_text(json.dumps(spec, indent=2))
    hide = f"mount -t tmpfs none /run && mkdir /run/cdi && cp {tmp_path}/nvidia.json /run/cdi"
    before = ("unshare", "--mount", "sh", "-c", f'{hide} && exec "$@"', "sh")
    engine_output = engine_call(run(WITH_GPUS, "podman", before=before))
    passed = [
        word.removeprefix("--device=") for word in engine_output["words"] if "--device=" in word
    ]
    assert passed == devices
    expected = "0,1" if devices else ",".join(UUIDS)
    assert engine_output["environment"]["CUDA_VISIBLE_DEVICES"] == expected


def test_gpus_of_amd(run: Running) -> None:
    amd = {"STOKER_GPUS": "0", "ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}
    engine_output = engine_call(
        run(replace(LAUNCH, gpus=("amd-1",), extra=LAUNCH.extra | amd), "podman")
    )
    assert engine_output["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert engine_output["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "--env=ROCR_VISIBLE_DEVICES" in engine_output["words"]


# ---------------------------------------------------------------------------------- the library


def test_the_copy_of_the_library_is_created_once_and_complete(tmp_path: Path) -> None:
    source = tmp_path / "src"
    for name in ("stoker/training/a.py", "kubernetesdlprofile/__init__.py", "stoker/secret.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "stoker/training/__pycache__").mkdir()
    (source / "stoker/training/__pycache__/a.pyc").write_text("")
    directory = library.provide(str(tmp_path), source)
    engine_output = sorted(
        str(option.relative_to(directory)) for option in Path(directory).rglob("*.*")
    )
    assert engine_output == ["kubernetesdlprofile/__init__.py", "stoker/training/a.py"]
    (Path(directory) / "mark").touch()
    assert library.provide(str(tmp_path), source) == directory
    assert (Path(directory) / "mark").exists(), "it was not made again"
    (source / "stoker/training/a.py").write_text("newer")
    assert library.provide(str(tmp_path), source) != directory
    assert len(os.listdir(tmp_path / "library")) == 2


def test_the_supervising_process_of_a_container_is_found_by_its_mark() -> None:
    mark = {"STOKER_CONTAINER": "stoker-here.7.1", "PATH": os.environ["PATH"]}
    pipe = subprocess.PIPE
    process = subprocess.Popen(["cat"], env=mark, stdin=pipe, stdout=pipe, text=True, bufsize=1)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print("there", file=process.stdin)
        process.stdout.readline()  # the kernel shows its environment only after exec
        assert container.is_supervisor_of(process.pid, "here.7.1")
        assert not container.is_supervisor_of(process.pid, "here.7.2")
        assert not container.is_supervisor_of(os.getpid(), "here.7.1")
    finally:
        process.communicate(timeout=30)
    assert not container.is_supervisor_of(process.pid, "here.7.1")
