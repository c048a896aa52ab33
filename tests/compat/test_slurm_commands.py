"""Slurm's commands with a real daemon: submit, look, signal, requeue, cancel."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.home_env import temporary_base
from compat.slurm_env import SlurmEnv
from stoker.compat import registry
from stoker.compat.slurm.command import COMMANDS

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmEnv]:
    with temporary_base() as base:
        yield SlurmEnv(base)


def script(slurm: SlurmEnv, name: str, text: str) -> str:
    path = slurm.user / name
    path.write_text(text)
    return str(path)


# -- the commands themselves ----------------------------------------------------------------


def test_the_package_installs_none_of_them() -> None:
    scripts = {path.name for path in Path(sys.executable).parent.iterdir()}
    assert not scripts & {*COMMANDS}
    assert not {*registry.ON_PATH} & {*COMMANDS}


def test_the_directory_has_all_of_them(slurm: SlurmEnv) -> None:
    assert sorted(os.listdir(slurm.commands)) == sorted(COMMANDS)
    assert slurm.ok("sh", "-c", "command -v squeue").strip() == f"{slurm.commands}/squeue"
    for name in COMMANDS:
        assert slurm.ok(name, "--version") == "slurm 22.05.8\n"
        assert slurm.ok(name, "--help").startswith(f"Usage: {name}")


def test_one_command_runs_with_them(slurm: SlurmEnv) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    done = slurm.stoker("compat", "slurm", "--", "sh", "-c", "command -v sbatch; exit 7", PATH=path)
    assert (done.returncode, done.stdout) == (7, f"{slurm.commands}/sbatch\n")
    assert slurm.stoker("compat", "slurm", "--", "no-such-command").returncode == 2
    assert slurm.stoker("compat", "slurm", "-x").returncode == 2
    assert "sbatch" in slurm.stoker("compat", "slurm", "--help").stdout


def test_a_real_slurm_is_mentioned(slurm: SlurmEnv, tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\n")
    (tmp_path / "sinfo").chmod(0o755)
    done = slurm.stoker("compat", "slurm", PATH=f"{slurm.commands}:{tmp_path}:/usr/bin:/bin")
    assert f"{tmp_path} has a real Slurm" in done.stderr
    assert done.stdout.startswith(f"export PATH={slurm.commands}:")


def test_files_of_the_current_directory_are_not_imported(slurm: SlurmEnv) -> None:
    script(slurm, "time.py", "raise SystemExit('imported')")
    script(slurm, "stoker.py", "raise SystemExit('imported')")
    try:
        slurm.ok("squeue")
    finally:
        (slurm.user / "time.py").unlink()
        (slurm.user / "stoker.py").unlink()


def test_the_first_command_starts_the_daemon() -> None:
    with temporary_base() as base:
        slurm = SlurmEnv(base)
        slurm.stoker("daemon", "stop")
        assert slurm.ok("sinfo", "-h", "-o", "%P") == "default*\n"


# -- sbatch ---------------------------------------------------------------------------------


def test_a_script_a_line_and_stdin(slurm: SlurmEnv) -> None:
    text = '#!/bin/sh\n#SBATCH -J named\necho $SLURM_JOB_NAME $SLURM_JOB_ID "$@"\n'
    path = script(slurm, "job.sh", text)
    reply = slurm.ok("sbatch", path, "a b", "c")
    match = re.fullmatch(r"Submitted batch job (\d+)\n", reply)
    assert match
    assert slurm.ended(match[1]) == "COMPLETED"
    assert slurm.read(f"slurm-{match[1]}.out") == f"named {match[1]} a b c\n"
    id = slurm.sbatch(input=text.replace("#SBATCH -J named", ""))
    assert slurm.ended(id) == "COMPLETED"
    assert slurm.read(f"slurm-{id}.out") == f"sbatch {id}\n"
    id = slurm.sbatch("--wrap", "echo \"a  b\" '$HOME' $((1 + 1)); exit 3")
    assert slurm.ended(id) == "FAILED"
    assert slurm.read(f"slurm-{id}.out") == "a  b $HOME 2\n"
    assert slurm.ok("sacct", "-XnPj", id, "-o", "JobName,ExitCode") == "wrap|3:0\n"


def test_an_array_and_its_files(slurm: SlurmEnv) -> None:
    line = "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT"
    id = slurm.sbatch("-a", "1-5:2%2", "--wrap", line)
    slurm.end(id)
    for index in (1, 3, 5):
        assert slurm.read(f"slurm-{id}_{index}.out") == f"{id} {index} 3\n"
    id = slurm.sbatch(
        "-J", "x", "-a", "4", "-o", "o/%x-%A-%a-%N-%t-%u-%%.txt", "-e", "e-%j.txt", "--wrap",
        "echo out; echo err >&2",
    )  # fmt: skip
    slurm.end(id)
    node = slurm.ok("sinfo", "-h", "-o", "%N").strip()
    user = slurm.ok("id", "-un").strip()
    assert slurm.read(f"o/x-{id}-4-{node}-0-{user}-%.txt") == "out\n"
    assert slurm.read(f"e-{id}.txt") == "err\n"


def test_what_is_printed(slurm: SlurmEnv) -> None:
    wrap = ("-H", "--wrap", "true")
    assert re.fullmatch(r"\d+\n", slurm.ok("sbatch", "--parsable", *wrap))
    assert re.fullmatch(r"\d+;c1\n", slurm.ok("sbatch", "--parsable", "-M", "c1", *wrap))
    assert slurm.ok("sbatch", "--quiet", *wrap) == ""
    done = slurm.run("sbatch", "--licenses=a", "--hint", "nomultithread", *wrap)
    assert done.stdout.startswith("Submitted batch job ")
    assert done.stderr == "sbatch: options without effect: --hint --licenses\n"
    done = slurm.run("sbatch", "--gpuss=1", "--wrap", "true")
    assert done.returncode == 1
    assert "Did you mean --gpus?" in done.stderr
    done = slurm.run("sbatch", "--gpus=99", "--wrap", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("sbatch: error: Batch job submission failed: ")
    done = slurm.run("sbatch", input="echo no first line\n")
    assert done.returncode == 1
    assert "sbatch: error: For instance: #!/bin/sh" in done.stderr
    assert "Batch script is empty!" in slurm.run("sbatch", input="").stderr
    slurm.ok("scancel", "--me", "-t", "PENDING")


def test_variables_directives_and_options(slurm: SlurmEnv) -> None:
    path = script(slurm, "p.sh", "#!/bin/sh\n#SBATCH -J low -t 5 --comment=c\ntrue\n")
    environment = {"SBATCH_JOB_NAME": "middle", "SBATCH_TIMELIMIT": "7", "SBATCH_PARTITION": "q"}
    id = slurm.sbatch("-H", "-J", "high", path, **environment)
    line = slurm.ok("squeue", "-h", "-j", id, "-o", "%j %l %P %k")
    assert line == "high 7:00 q c\n"
    slurm.ok("scancel", id)


def test_the_environment(slurm: SlurmEnv) -> None:
    line = "echo ${A-none} ${B-none}; echo $SLURM_JOB_ID $SLURM_SUBMIT_DIR"
    texts = {}
    for export in ("ALL", "NONE", "B", "ALL,B=3"):
        id = slurm.sbatch(f"--export={export}", "--wrap", line, A="1", B="2")
        slurm.end(id)
        texts[export] = slurm.read(f"slurm-{id}.out")
        assert texts[export].endswith(f"\n{id} {slurm.user}\n")
    first = {export: text.partition("\n")[0] for export, text in texts.items()}
    assert first == {"ALL": "1 2", "NONE": "none none", "B": "none 2", "ALL,B=3": "1 3"}


def test_mail_at_the_end() -> None:
    with temporary_base() as base:
        (base / "bin").mkdir()
        program, mail = base / "bin" / "sendmail", base / "mail"
        program.write_text(f"#!/bin/sh\ncat > {mail}.new && mv {mail}.new {mail}\n")
        program.chmod(0o755)
        path = f"{base}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        slurm = SlurmEnv(base, PATH=path)
        done = slurm.run(
            "sbatch", "--wrap=exit 3", "-J", "train", "--mail-type=FAIL,STAGE_OUT",
            "--mail-user=ana@lab.org",
        )  # fmt: skip
        assert done.stdout == "Submitted batch job 1\n", done
        assert done.stderr == "sbatch: --mail-type STAGE_OUT is not sent\n"
        slurm.end(1)
        # Failures wait a minute for others; a daemon that stops does not.
        assert slurm.stoker("daemon", "stop").returncode == 0
        text = mail.read_text()
        assert "To: ana@lab.org\n" in text
        assert "Subject: stoker: job 1 train FAILED\n" in text
        assert "exit 3" in text


def test_dependencies(slurm: SlurmEnv) -> None:
    first = slurm.sbatch("-H", "--wrap", "exit 1")
    after = {
        kind: slurm.sbatch("-d", f"{kind}:{first}", "--wrap", "true")
        for kind in ("afterok", "afterany", "afternotok", "after")
    }
    line = slurm.ok("squeue", "-h", "-j", after["afterok"], "-o", "%t %r %E")
    assert line == f"PD Dependency afterok:{first}(unfulfilled)\n"
    slurm.ok("scontrol", "release", first)
    for kind in ("afterany", "afternotok", "after"):
        assert slurm.ended(after[kind]) == "COMPLETED"
    assert slurm.ok("squeue", "-h", "-j", after["afterok"], "-o", "%r") in (
        "DependencyNeverSatisfied\n", "",
    )  # fmt: skip
    slurm.run("scancel", after["afterok"])
    done = slurm.run("sbatch", "-d", "sometime:1", "--wrap", "true")
    assert done.returncode == 1


def test_a_job_can_be_waited_for(slurm: SlurmEnv) -> None:
    done = slurm.run("sbatch", "-W", "--wrap", "exit 5")
    assert done.returncode == 5
    done = slurm.run("sbatch", "--test-only", "--wrap", "true")
    assert done.returncode == 0
    assert "the job would start now" in done.stderr


def test_the_signal_before_the_time_limit(slurm: SlurmEnv) -> None:
    text = "#!/bin/sh\ntrap 'echo got; exit 0' USR2\nwhile :; do sleep 0.1; done\n"
    path = script(slurm, "trap.sh", text)
    id = slurm.sbatch("-t", "0:31", "--signal=B:USR2@30", path)
    assert slurm.ended(id) == "COMPLETED"
    assert slurm.read(f"slurm-{id}.out") == "got\n"  # its `sleep` does not get the signal


@pytest.mark.parametrize(("mode", "text"), [("append", "old\n0\n1\n"), ("truncate", "1\n")])
def test_output_of_a_requeued_job(mode: str, text: str, slurm: SlurmEnv) -> None:
    (slurm.user / f"{mode}.txt").write_text("old\n")
    line = "echo ${SLURM_RESTART_COUNT-0}; [ ${SLURM_RESTART_COUNT-0} = 1 ] || exec sleep 100"
    options = ["--open-mode=append"] if mode == "append" else []
    id = slurm.sbatch(*options, "-o", f"{mode}.txt", "--wrap", line)
    slurm.wait_for(id, "RUNNING")
    while not slurm.read(f"{mode}.txt").endswith("0\n"):
        time.sleep(0.02)
    slurm.ok("scontrol", "requeue", id)
    assert slurm.ended(id) == "COMPLETED"
    assert slurm.read(f"{mode}.txt") == text
    assert slurm.ok("squeue", "-h", "-t", "all", "-j", id, "-O", "restartcnt:|") == "1|\n"


# -- changes --------------------------------------------------------------------------------


def test_members_of_an_array_are_requeued_and_cancelled(slurm: SlurmEnv) -> None:
    line = "[ $SLURM_RESTART_COUNT ] || exec sleep 100"
    id = slurm.sbatch("-a", "0-3", "--wrap", line)
    for index in range(4):
        slurm.wait_for(f"{id}_{index}", "RUNNING")
    slurm.ok("scontrol", "requeue", f"{id}_[1-2]")
    assert slurm.ended(f"{id}_1") == slurm.ended(f"{id}_2") == "COMPLETED"
    assert slurm.state(f"{id}_3") == "RUNNING"
    slurm.ok("scancel", f"{id}_0", f"{id}_3")
    assert slurm.ended(f"{id}_3") == f"CANCELLED by {os.getuid()}"
    slurm.ok("scontrol", "requeue", f"{id}_1")  # an ended one runs again
    assert slurm.ended(f"{id}_1") == "COMPLETED"
    assert slurm.ok("scancel", "99999") == ""
    done = slurm.run("scontrol", "requeue", "99999")
    assert (done.returncode, done.stderr) == (1, "Invalid job id specified for job 99999\n")


def test_a_preempted_job_is_pending(slurm: SlurmEnv) -> None:
    low = slurm.sbatch("--gpus=2", "--requeue", "--wrap", "sleep 100")
    slurm.wait_for(low, "RUNNING")
    high = slurm.sbatch("--gpus=2", "--priority=100", "--wrap", "sleep 2")
    seen = set()
    deadline = time.monotonic() + 60
    while slurm.state(high) != "COMPLETED":
        seen.add(slurm.state(low))
        seen.add(slurm.ok("squeue", "-h", "-t", "all", "-j", low, "-o", "%T").strip())
        assert time.monotonic() < deadline
    assert "PENDING" in seen
    assert seen <= {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
    slurm.ok("scancel", low)


def test_signals(slurm: SlurmEnv) -> None:
    text = "#!/bin/sh\ntrap 'echo USR2' USR2\ntrap 'echo USR1; exit 0' USR1\necho up\n"
    path = script(slurm, "signals.sh", f"{text}while :; do sleep 0.1; done\n")
    id = slurm.sbatch("-J", "signalled", path)

    def printed(text: str) -> None:
        deadline = time.monotonic() + 20
        while not slurm.user.joinpath(f"slurm-{id}.out").exists() or text not in slurm.read(
            f"slurm-{id}.out"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    printed("up")
    slurm.ok("scancel", "--signal=USR2", "--batch", id)
    printed("USR2")
    slurm.ok("scancel", "-s", "SIGUSR1", "-n", "signalled", "-t", "R")
    assert slurm.ended(id) == "COMPLETED"
    assert slurm.run("scancel", "-s", str(int(signal.SIGUSR1)), id).returncode == 1


def test_selected_jobs_are_cancelled(slurm: SlurmEnv) -> None:
    running = slurm.sbatch("-J", "pick", "--wrap", "sleep 100")
    held = [slurm.sbatch("-J", name, "-H", "--wrap", "true") for name in ("pick", "other")]
    slurm.wait_for(running, "RUNNING")
    slurm.ok("scancel", "-n", "pick", "-t", "PENDING")
    assert slurm.state(held[0]).startswith("CANCELLED")
    assert [slurm.state(id) for id in (running, held[1])] == ["RUNNING", "PENDING"]
    user = slurm.ok("id", "-un").strip()
    slurm.ok("scancel", "-u", user)
    assert slurm.ended(running).startswith("CANCELLED")
    assert slurm.ok("squeue", "-h", "--me") == ""


def test_pending_jobs_are_changed(slurm: SlurmEnv) -> None:
    id = slurm.sbatch("-H", "-t", "5", "--wrap", "true")
    changes = ("TimeLimit=2:00:00", "Comment=x", "NumCPUs=2", "JobName=new", "Partition=q2")
    slurm.ok("scontrol", "update", f"JobId={id}", *changes)
    line = slurm.ok("squeue", "-h", "-j", id, "-o", "%l %k %C %j %P %r")
    assert line == "2:00:00 x 2 new q2 JobHeldUser\n"
    assert slurm.run("scontrol", "update", f"JobId={id}", "NumNodes=9").returncode == 1
    array = slurm.sbatch("-H", "-a", "0-2", "--wrap", "true")
    slurm.ok("scontrol", "update", f"JobId={array}_1", "TimeLimit=9")
    lines = slurm.ok("squeue", "-h", "-r", "-j", array, "-o", "%K %l")
    assert lines == "0 UNLIMITED\n1 9:00\n2 UNLIMITED\n"
    done = slurm.run("scontrol", "requeue", id)
    assert (done.returncode, done.stderr) == (1, f"Job is pending execution for job {id}\n")
    slurm.ok("scontrol", "top", id)
    slurm.ok("scontrol", "release", id)
    assert slurm.ended(id) == "COMPLETED"
    slurm.ok("scancel", array)


def test_running_jobs_are_suspended(slurm: SlurmEnv) -> None:
    id = slurm.sbatch("--wrap", "sleep 100")
    slurm.wait_for(id, "RUNNING")
    slurm.ok("scontrol", "suspend", id)
    assert slurm.ok("squeue", "-h", "-j", id, "-o", "%t") == "S\n"
    slurm.ok("scontrol", "resume", id)
    assert slurm.ok("squeue", "-h", "-j", id, "-o", "%t") == "R\n"
    slurm.ok("scancel", id)


def test_nodes_are_drained(slurm: SlurmEnv) -> None:
    node = slurm.ok("sinfo", "-h", "-o", "%N").strip()
    slurm.ok("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fan")
    assert slurm.ok("sinfo", "-h", "-o", "%t").strip() in ("drain", "drng")
    slurm.ok("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert slurm.ok("sinfo", "-h", "-o", "%T").strip() in ("idle", "mixed")


# -- what tools ask -------------------------------------------------------------------------


def test_the_lines_of_nextflow(slurm: SlurmEnv) -> None:
    """As in Nextflow's SlurmExecutor: submit a file, list ids and states, cancel."""
    header = "#!/bin/bash\n#SBATCH -J nf-a_(1)\n#SBATCH -o .command.log\n#SBATCH --no-requeue\n"
    options = "#SBATCH --signal B:USR2@30\n#SBATCH -c 2\n#SBATCH -t 01:00:00\n#SBATCH --mem 100M\n"
    script(slurm, ".command.run", f"{header}{options}# NEXTFLOW TASK: a (1)\necho task\n")
    reply = slurm.ok("sbatch", ".command.run")
    match = re.search(r"Submitted batch job (\d+)", reply)
    assert match
    user = slurm.ok("id", "-un").strip()
    slurm.end(match[1])
    assert slurm.read(".command.log") == "task\n"
    sleeping = slurm.sbatch("--wrap", "sleep 100")
    lines = slurm.ok("squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u", user)
    states = dict(line.split() for line in lines.splitlines())
    assert states[match[1]] == "CD"
    assert states[sleeping] in ("PD", "R", "CF")
    listing = ("squeue", "--noheader", "-o", "%i %t", "-t", "all", "-p", "default", "-u", user)
    assert f"{match[1]} CD\n" in slurm.ok(*listing)
    assert slurm.ok("scancel", sleeping) == ""


def test_what_snakemake_asks(slurm: SlurmEnv) -> None:
    begin = time.strftime("%Y-%m-%dT%H:%M", time.localtime(time.time() - 3600))
    id = slurm.sbatch("-J", "smk-run", "--comment=rule_a", "--wrap", "true")
    slurm.end(id)
    sacct = ("sacct", "-X", "--parsable2", "--clusters", "all", "--noheader")
    text = slurm.ok(*sacct, "--format=JobIdRaw,State", "--starttime", begin, "--name", "smk-run")
    assert text == f"{id}|COMPLETED\n"
    assert slurm.ok(*sacct, "--format=JobIdRaw", "--starttime", begin, "--endtime", begin) == ""
    assert slurm.ok(*sacct, "--format=JobIdRaw", "-S", "now-2hours", "--name", "no-such") == ""
    assert "MinJobAge               = 300 sec\n" in slurm.ok("scontrol", "show", "config")
    assert "SLURM_VERSION           = 22.05.8\n" in slurm.ok("scontrol", "show", "config")
    group = slurm.ok("id", "-gn").strip()
    user = slurm.ok("id", "-un").strip()
    where = ("-n", "-s", "show", "user", user, "format=account%256")
    assert slurm.ok("sacctmgr", *where) == f"{group}\n"
    assert slurm.ok("sshare", "-U", "--format", "Account", "--noheader") == f"{group}\n"
    assert slurm.run("sacctmgr", "add", "user", "x").returncode == 1
    assert "default" in slurm.ok("sinfo", "-h", "-o", "%P")


def test_the_queue_as_json(slurm: SlurmEnv) -> None:
    id = slurm.sbatch("-J", "j", "--wrap", "exit 2")
    slurm.end(id)
    jobs = json.loads(slurm.ok("squeue", "--json", "-t", "all"))["jobs"]
    (job,) = (job for job in jobs if job["job_id"] == int(id))
    assert (job["job_state"], job["exit_code"], job["name"]) == ("FAILED", 512, "j")


def test_pending_members_of_a_named_array(slurm: SlurmEnv) -> None:
    id = slurm.sbatch("-H", "-a", "1-3,7", "--wrap", "true")
    text = slurm.ok("sacct", "-o", "JobID,State,NodeList", "--parsable2", "-j", id)
    assert text == f"JobID|State|NodeList\n{id}_[1-3,7]|PENDING|None assigned\n"
    assert slurm.ok("sacct", "-XnPj", f"{id}_2,9999", "-o", "JobID") == f"{id}_2\n"
    slurm.ok("scancel", id)


# -- srun and salloc ------------------------------------------------------------------------


def test_srun_outside_a_job(slurm: SlurmEnv) -> None:
    words = ("srun", "-n", "2", "-t", "5", "-l", "--cpu-bind=q", "-J", "step")
    line = "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_ID $SLURM_JOB_NAME"
    text = slurm.ok(*words, "sh", "-c", line)
    assert sorted(text.splitlines()) == ["0: 0 2 0 step", "1: 1 2 0 step"]
    done = slurm.run("srun", "--mem=50", "sh", "-c", "exit 6")
    assert done.returncode == 6
    slurm.ok("srun", "-n2", "-o", "task-%t.txt", "sh", "-c", "echo $SLURM_PROCID")
    assert [slurm.read(f"task-{task}.txt") for task in (0, 1)] == ["0\n", "1\n"]


def test_salloc(slurm: SlurmEnv) -> None:
    words = ("salloc", "--gpus=1", "sh", "-c", "srun sh -c 'echo $SLURM_JOB_GPUS'; exit 4")
    done = slurm.run(*words)
    assert (done.returncode, done.stdout) == (4, "0\n")


def test_sbatch_and_squeue_inside_a_job(slurm: SlurmEnv) -> None:
    line = "squeue -h -j $SLURM_JOB_ID -o %j; sbatch --parsable inner.sh"
    script(slurm, "inner.sh", "#!/bin/sh\necho $SLURM_JOB_NAME ${SLURM_NTASKS-none}\n")
    id = slurm.sbatch("-J", "outer", "-n", "2", "-t", "5", "--wrap", line)
    slurm.end(id)
    name, inner = slurm.read(f"slurm-{id}.out").split()
    assert name == "outer"
    assert slurm.ended(inner) == "COMPLETED"
    assert slurm.read(f"slurm-{inner}.out") == "inner.sh none\n"
    assert slurm.ok("scontrol", "show", "job", inner).count("Deadline=N/A") == 1


def test_a_job_requeues_itself(slurm: SlurmEnv) -> None:
    line = (
        "echo ${SLURM_RESTART_COUNT-0}; [ $SLURM_RESTART_COUNT ] || scontrol requeue $SLURM_JOB_ID"
    )
    id = slurm.sbatch("--open-mode=append", "--wrap", f"{line}; sleep 1")
    deadline = time.monotonic() + 30
    while slurm.state(id) != "COMPLETED":
        assert slurm.state(id) in ("PENDING", "RUNNING", "COMPLETED")
        assert time.monotonic() < deadline
    assert slurm.read(f"slurm-{id}.out") == "0\n1\n"


def test_every_command_is_a_program_on_path(slurm: SlurmEnv) -> None:
    for name in COMMANDS:
        assert shutil.which(name, path=slurm.env["PATH"]) == f"{slurm.commands}/{name}"
