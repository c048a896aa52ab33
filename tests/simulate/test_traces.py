"""Every format of a recorded workload, what is said of a bad one, and machines for it."""

import gzip
import json
import shutil
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.model.units import BadValue
from stoker.simulate.traces import cluster_size as sizing
from stoker.simulate.traces import detect, files
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.formats import generic_table
from stoker.simulate.workload import TraceJob, Workload

SAMPLES = Path(__file__).parent / "traces"
OUT = "correct or delete the line."
RENAME = "rename the column that has them."
TAKE = "delete the line."
LONG = 140_000
"""More characters than a cell may have."""
FILES = {
    "csv/philly.csv": "csv",
    "csv/itp.csv": "csv",
    "muri/trace.csv": "muri",
    "sacct/jobs.txt": "sacct",
    "swf/example.swf": "swf",
    "history/history.json": "history",
}


def written(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(path: Path, format: str | None = None) -> str:
    with pytest.raises(TraceError) as caught:
        detect.read(path, format)
    return str(caught.value).replace(str(path), "FILE")


# -- all of them ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "format"), FILES.items())
def test_a_file_is_known_by_what_is_in_it(name: str, format: str, tmp_path: Path) -> None:
    copy = tmp_path / "anything"
    shutil.copy(SAMPLES / name, copy)
    assert detect.detect_format(copy) == format
    assert detect.read(copy).jobs == detect.read(SAMPLES / name, format).jobs


@pytest.mark.parametrize(
    ("line", "format"),
    [
        ("name,time,application,num_replicas,batch_size", "pollux"),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase", "openb"),
        ("LM (batch size 5)\tpython main.py\tlm\t--steps\t1\t925\t4\t1\t-1.0\t0", "gavel"),
        ("LM (batch size 5)\tpython main.py\t--steps\t1\t925\t4\t1\t-1.0\t0", "gavel"),
        ("; Version: 2.2", "swf"),
        ("1 0 -1 10 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1", "swf"),
        ("JobIDRaw|Submit|Elapsed|AllocTRES|", "sacct"),
        ('{"jobs": []}', "history"),
        ("[]", "history"),
        ("\n\nsubmit_time,duration,num_gpus", "csv"),
    ],
)
def test_the_first_line_tells_the_format(tmp_path: Path, line: str, format: str) -> None:
    assert detect.detect_format(written(tmp_path, line + "\n")) == format


@pytest.mark.parametrize("name", [*FILES, "pollux/workload.csv", "gavel/jobs.trace"])
def test_jobs_are_in_order_and_the_first_is_submitted_at_0(name: str) -> None:
    jobs = detect.read(SAMPLES / name).jobs
    times = [job.submit_time for job in jobs]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert all(job.duration > 0 and (job.gpus > 0 or job.cpus > 0) for job in jobs)


@pytest.mark.parametrize("name", FILES)
def test_a_compressed_file_is_read_like_any_other(name: str, tmp_path: Path) -> None:
    packed = tmp_path / Path(name).name
    packed.write_bytes(gzip.compress((SAMPLES / name).read_bytes()))
    assert detect.read(packed) == detect.read(SAMPLES / name)


def test_a_bare_list_of_jobs_is_read_like_what_was_printed(tmp_path: Path) -> None:
    """As `jq .jobs` makes one."""
    printed = SAMPLES / "history/history.json"
    bare = written(tmp_path, json.dumps(json.loads(printed.read_text())["jobs"]))
    assert detect.read(bare).jobs == detect.read(printed).jobs


@pytest.mark.parametrize("name", FILES)
def test_reading_twice_gives_the_same(name: str) -> None:
    assert detect.read(SAMPLES / name) == detect.read(SAMPLES / name)


def test_a_file_may_begin_with_a_byte_order_mark_and_end_its_lines_as_windows_does(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes("\ufeffSubmit Time;Duration;GPUs\r\n0;5;1\r\n\r\n9;5;2\r\n".encode())
    assert detect.read(path).jobs == [
        TraceJob(submit_time=0.0, duration=5.0, gpus=1.0),
        TraceJob(submit_time=9.0, duration=5.0, gpus=2.0),
    ]


# -- plain tables -----------------------------------------------------------------------


def test_philly_has_dates_and_virtual_clusters() -> None:
    workload = detect.read(SAMPLES / "csv/philly.csv")
    assert (workload.title, len(workload.jobs), workload.notes) == ("philly", 42, [])
    assert workload.jobs[0] == TraceJob(submit_time=0.0, duration=1194.0, gpus=1.0, queue="6214e9")


def test_split_gives_each_virtual_cluster_a_workload_of_its_own() -> None:
    whole = detect.read(SAMPLES / "csv/philly.csv")
    parts = detect.split(whole)
    assert list(parts) == ["0e4a51", "11cb48", "6214e9", "6c71a0", "b436b2", "ed69ec"]
    assert sum(len(part.jobs) for part in parts.values()) == len(whole.jobs)
    assert all(part.jobs[0].submit_time == 0.0 for part in parts.values())
    assert {job.queue for job in parts["b436b2"].jobs} == {"b436b2"}
    assert parts["b436b2"].title == "philly b436b2"
    assert whole == detect.read(SAMPLES / "csv/philly.csv")  # nothing of it was changed


def test_split_of_a_workload_without_queues_is_that_workload() -> None:
    whole = detect.read(SAMPLES / "csv/itp.csv")
    assert detect.split(whole) == {"": whole}


def test_a_table_with_every_column(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "job_id,user,vc,jobname,gpu_num,cpu_num,mem_gb,node_num,state,submit_time,start_time,"
        "end_time,duration,queue,timelimit,priority,gpu_memory,gpu_type\n"
        "1,ada,vc1,resnet,2,8,64,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,"
        "2020-04-01 01:01:00,3600.0,50,1-00:00:00,3,10G,V100|A100\n",
    )
    assert detect.read(path).jobs == [
        TraceJob(
            submit_time=0.0,
            duration=3600.0,
            gpus=2.0,
            user="ada",
            name="resnet",
            queue="vc1",
            priority=3,
            cpus=8.0,
            ram=65536,
            gpu_memory=10240,
            time_limit=86400,
            gpu_models=("V100", "A100"),
        )
    ]


def test_a_duration_is_the_time_between_start_and_end_where_none_is_given(tmp_path: Path) -> None:
    path = written(tmp_path, "submit,start,end,gpus\n0,10,70,1\n5,80,None,1\n6,,,1\n7,90,90,1\n")
    workload = detect.read(path)
    assert [job.duration for job in workload.jobs] == [60.0]
    assert workload.notes == [
        "2 jobs skipped: not started or not ended.",
        "1 job skipped: the run time is zero.",
    ]


def test_units_stand_in_the_names_of_columns(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "submit_time_ms,runtime_minutes,gpus,time_limit_hours\n"
        "1600000000500,2,1,1.5\n1600000001000,3,1,\n",
    )
    assert detect.read(path).jobs == [
        TraceJob(submit_time=0.0, duration=120.0, time_limit=5400),
        TraceJob(submit_time=0.5, duration=180.0),
    ]


PHILLY_MINUTES = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    + "".join(f"{n},vc{n % 3},1,{20 * n},900,vgg16,{20 + 7 * n},5\n" for n in range(40))
)
"""Minutes, as in tables that others made of Philly's; the names are those of tables in seconds."""


def test_times_that_may_be_minutes_are_read_only_with_a_unit(tmp_path: Path) -> None:
    path = written(tmp_path, PHILLY_MINUTES)
    assert refusal(path) == (
        "FILE, line 1: the unit of duration is not clear: half of the run times are at most 160; "
        "give --time-unit seconds or --time-unit minutes."
    )
    minutes = detect.read(path, time_unit=60.0).jobs
    seconds = detect.read(path, time_unit=1.0).jobs
    assert [(job.submit_time, job.duration) for job in minutes[:2]] == [(0, 1200), (1200, 1620)]
    assert [job.duration * 60 for job in seconds] == [job.duration for job in minutes]


@pytest.mark.parametrize(
    "header",
    [
        "submit_time,duration_seconds,gpus", "submit_time,seconds,gpus",
        "submit_time,duration_minutes,gpus",
    ],
)  # fmt: skip
def test_a_unit_in_the_name_of_the_column_is_enough(tmp_path: Path, header: str) -> None:
    rows = "".join(f"{n},{n + 30},1\n" for n in range(40))
    jobs = detect.read(written(tmp_path, f"{header}\n{rows}")).jobs
    assert jobs[0].duration == (1800 if "minutes" in header else 30)


def test_a_time_unit_applies_to_plain_numbers_without_a_unit_only(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "submit_time,duration,gpus,time_limit_hours\n"
        "2026-11-01 12:00:00,2,1,1\n1793534460,3,1,1\n2026-11-01 12:02:00,0:10:00,1,1\n",
    )
    jobs = detect.read(path, time_unit=60.0).jobs
    assert [(job.submit_time, job.duration, job.time_limit) for job in jobs] == [
        (0.0, 120.0, 3600), (60.0, 180.0, 3600), (120.0, 600.0, 3600),
    ]  # fmt: skip


def test_run_times_far_shorter_than_from_start_to_end_are_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "submit,start,end,duration,gpus\n"
        "2026-11-01 12:00:00,2026-11-01 12:00:00,2026-11-01 20:00:00,480,1\n"
        "2026-11-01 12:00:00,2026-11-01 13:00:00,2026-11-01 20:00:00,420,1\n",
    )
    assert refusal(path) == (
        "FILE, line 1: the unit of duration is not clear: most jobs run far longer from start to "
        "end; rename it, for example to duration_minutes."
    )


def test_a_time_unit_is_refused_where_the_format_has_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="omit --time-unit"):
        detect.read(SAMPLES / "muri/trace.csv", time_unit=60.0)


def test_jobs_without_gpus_are_kept_if_they_ask_for_processors(tmp_path: Path) -> None:
    path = written(tmp_path, "submit,duration,gpus,cpus\n0,5,0,4\n1,5,0,0\n2,5,1,\n")
    workload = detect.read(path)
    assert [(job.gpus, job.cpus) for job in workload.jobs] == [(0.0, 4.0), (1.0, 0.0)]
    assert workload.notes == [
        "1 job skipped: no GPU and no core requested.",
        "1 job requests cores only.",
    ]


def test_without_times_of_submission_those_of_the_start_serve(tmp_path: Path) -> None:
    workload = detect.read(written(tmp_path, "start_time,end_time,num_gpus\n20,25,1\n10,15,1\n"))
    assert [job.submit_time for job in workload.jobs] == [0.0, 10.0]
    assert workload.notes == ["No submission times: the start times are used instead."]


@pytest.mark.parametrize(
    ("text", "line", "keyword"),
    [
        ("submit_time,duration,num_gpus\n0,5,1\n1,abc,1\n", 3, "duration 'abc'"),
        ("submit_time,duration,num_gpus\n0,5,1\n\n1,5,many\n", 4, "num_gpus 'many'"),
        ("submit_time,duration,num_gpus\n0,-5,1\n", 2, "duration '-5'"),
        ("submit_time,duration,num_gpus\nyesterday,5,1\n", 2, "submit_time 'yesterday'"),
        ("submit_time,duration,num_gpus\n1600000000500,5,1\n", 2, "_ms"),
        ("submit_time,duration,num_gpus\n0,5\n", 2, "expected 3 cells"),
        ("name,submit_time,duration,num_gpus\nnet,0,5,1,\nnet, large,1,5,1\n", 3, "found 5"),
        ("submit,start,end,gpus\n0,10,5,1\n", 2, "ends (5) before it starts (10)"),
        ("submit_time,duration,user\n0,5,ada\n", 1, "num_gpus"),
        ("duration,gpus\n5,1\n", 1, "submit_time"),
        ("submit_time,gpus\n5,1\n", 1, "start_time and end_time"),
        ("", 1, "empty"),
        (
            'submit_time,duration,num_gpus,name\n0,60,1,a\n30,60,1,"b\n60,7200,4,c\n',
            3,
            "never closed",
        ),
        (
            'submit_time,duration,num_gpus,name\n0,60,1,"b\n60,7200,4,"c"\n',
            2,
            "after its closing quote",
        ),
        (f"submit_time,duration,num_gpus,name\n0,60,1,{'a' * LONG}\n", 2, "131,072 characters"),
        (
            'submit_time,duration,num_gpus,name\n0,60,1,"a\n' + "1,60,1,a\n" * LONG,
            2,
            "not closed within 131,072",
        ),
        (f"submit_time,duration,num_gpus,{'a' * LONG}\n0,60,1,a\n", 1, "131,072 characters"),
        ("Dear diary\n", 1, "--format"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\n", 1, "node table"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, keyword: str
) -> None:
    message = refusal(written(tmp_path, text))
    assert message.startswith(f"FILE, line {line}: ")
    assert keyword in message


@pytest.mark.parametrize("rows", ["", "1,0,1\n"])
def test_a_table_without_a_job_that_ran_is_refused(tmp_path: Path, rows: str) -> None:
    message = refusal(written(tmp_path, f"submit_time,duration,num_gpus\n{rows}"))
    assert message.startswith("FILE has no job that ran")
    assert ("run time is zero" in message) == bool(rows)


@pytest.mark.parametrize(
    ("format", "header"),
    [
        ("openb", "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time"),
        ("pollux", "name,time,application,num_replicas,batch_size"),
    ],
)
def test_an_unclosed_quote_is_refused_in_other_tables_too(
    tmp_path: Path, format: str, header: str
) -> None:
    (tmp_path / "profiles").mkdir()
    path = written(tmp_path, f'{header}\n"a,0,0,0,0,0\na,0,0,0,0,0\n')
    assert refusal(path, format).startswith("FILE, line 2: the quote")


def test_a_quoted_cell_may_have_separators_quotes_and_several_lines(tmp_path: Path) -> None:
    text = 'submit_time,duration,num_gpus,name\n0,5,1,"a, ""b""\nc"\n1,5,1,d"e\n'
    workload = detect.read(written(tmp_path, text))
    assert [job.name for job in workload.jobs] == ['a, "b"\nc', 'd"e']


def test_times_that_lie_more_than_ten_years_apart_are_worth_a_note(tmp_path: Path) -> None:
    mixed = "duration,num_gpus,submit_time\n5,1,60\n5,1,2026-11-01 12:00:00\n5,1,30\n0\n0,1,a\n"
    assert detect.read(written(tmp_path, mixed)).notes == [
        (
            "submit_time spans 57 years, from 30 (line 4) to 2026-11-01 12:00:00 (line 3); "
            "check whether the column mixes dates and plain seconds."
        ),
        "2 jobs skipped: the run time is zero.",
    ]
    dates = "submit_time,duration,num_gpus\n2020-01-01,5,1\n2029-12-01,5,1\n"
    assert not detect.read(written(tmp_path, dates)).notes


YEARS = "a time of at most ten years"
NOT_MS = "a number of seconds (in milliseconds, end the column's name in _ms)"
UP = "a number of seconds from 0 up"


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("submit_time,duration,num_gpus", "0,1e300,1", f"duration '1e300' is not {YEARS}"),
        ("submit_time,duration,num_gpus", "0,inf,1", f"duration 'inf' is not {YEARS}"),
        ("submit_time,duration,num_gpus", "0,-inf,1", f"duration '-inf' is not {UP}"),
        ("submit_time,duration_h,num_gpus", "0,1e6,1", f"duration_h '1e6' is not {YEARS}"),
        ("submit_time,duration,num_gpus", "1e300,5,1", f"submit_time '1e300' is not {NOT_MS}"),
        ("submit_time,duration,num_gpus", "inf,5,1", f"submit_time 'inf' is not {NOT_MS}"),
        ("submit_time,duration,num_gpus", "-1,5,1", f"submit_time '-1' is not {UP}"),
        ("submit_time_ms,duration,num_gpus", "-1,5,1", f"submit_time_ms '-1' is not {UP}"),
        ("submit_time,duration,num_gpus", "0,5,1e300",
         "num_gpus '1e300' is not a number of at most 10,000,000"),
        ("submit,start,end,gpus", "0,1,1600000000,1",
         "the job runs for more than ten years, from 1 to 1600000000"),
        ("JobID|Submit|ElapsedRaw|AllocTRES", "1|0|1e300|gres/gpu=1",
         f"ElapsedRaw '1e300' is not {YEARS}"),
        ("JobID|Submit|Start|End|AllocTRES", "1|0|1|1600000000|gres/gpu=1",
         f"End - Start '1599999999.0' is not {YEARS}"),
        ("; Version: 2.2", "1 0 -1 1e300 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1",
         f"duration '1e+300' is not {YEARS}"),
        ("; Version: 2.2", "1 -1 -1 10 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1",
         f"submission '-1' is not {UP}"),
    ],
)  # fmt: skip
def test_a_time_that_no_job_has_is_refused_with_its_line(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    assert refusal(written(tmp_path, f"{header}\n{row}\n")).startswith(f"FILE, line 2: {message}")


def test_a_time_limit_of_more_than_ten_years_is_none(tmp_path: Path) -> None:
    rows = "0,5,1,1e300\n0,5,1,inf\n0,5,1,3600\n"
    workload = detect.read(written(tmp_path, f"submit_time,duration,num_gpus,limit\n{rows}"))
    assert [job.time_limit for job in workload.jobs] == [None, None, 3600]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_what_is_piped_is_read_like_a_file(
    name: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (SAMPLES / name).read_bytes()
    piped(monkeypatch, gzip.compress(data) if packed else data)
    workload = detect.read(Path("-"))
    assert workload.jobs == detect.read(SAMPLES / name).jobs
    assert workload.title == "stdin"


def test_an_error_in_piped_input_is_reported_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"submit_time,duration,num_gpus\n0,x,1\n")
    with pytest.raises(TraceError, match=r"^-, line 2: duration 'x' is not"):
        detect.read(Path("-"))


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    files._read_stdin.cache_clear()
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(data)))


def test_files_that_cannot_be_read_at_all(tmp_path: Path) -> None:
    assert "directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nothing")
    whole = gzip.compress((SAMPLES / "csv/itp.csv").read_bytes())
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "gzip" in refusal(cut)
    latin = tmp_path / "latin"
    latin.write_bytes(b"submit,duration,gpus,user\n0,5,1,J\xf6rg\n")
    assert "UTF-8" in refusal(latin)


CELL = st.one_of(
    st.floats(allow_nan=True).map(str), st.text(max_size=8), st.sampled_from(["", "-", "None"])
)


@given(st.lists(st.lists(CELL, min_size=3, max_size=4), max_size=4))
def test_any_table_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    lines = ["submit_time,duration,num_gpus,priority", *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines), "utf-8", errors="replace")
    said, jobs = "", []
    try:
        jobs = generic_table.read(path).jobs
    except TraceError as error:
        said = str(error)
    assert not jobs or jobs[0].submit_time == 0.0
    assert all(job.duration > 0 and job.gpus > 0 for job in jobs)
    assert jobs or (said.startswith(str(path)) and said.endswith("."))


# -- Muri, Slurm, SWF ---------------------------------------------------------------------


def test_muri_counts_in_milliseconds() -> None:
    workload = detect.read(SAMPLES / "muri/trace.csv")
    assert workload.jobs[:2] == [
        TraceJob(submit_time=0.0, duration=2868294.0, gpus=1.0, name="dqn"),
        TraceJob(submit_time=201694.0, duration=4472936.0, gpus=8.0, name="dqn"),
    ]
    assert workload.notes == [
        "All times in the file are milliseconds.",
        "Priorities in the file are ignored.",
    ]


def test_muri_needs_its_columns() -> None:
    message = refusal(SAMPLES / "csv/philly.csv", "muri")
    assert message.startswith("FILE, line 1: column submit_time is missing")


def test_sacct_gives_what_jobs_asked_for() -> None:
    workload = detect.read(SAMPLES / "sacct/jobs.txt")
    assert [
        (job.submit_time, job.duration, job.gpus, job.time_limit, job.gpu_models)
        for job in workload.jobs
    ] == [
        (0.0, 5400.0, 1.0, 7200, ()),
        (30.0, 86410.0, 8.0, 86400, ("a100",)),
        (600.0, 1800.0, 1.0, None, ()),
        (600.0, 1200.0, 1.0, None, ()),
        (720.0, 600.0, 0.0, None, ()),
        (1200.0, 7200.0, 16.0, 14400, ()),
        (1800.0, 930.0, 1.0, 1800, ("v100",)),
    ]
    prepared = workload.jobs[4]
    assert (prepared.user, prepared.queue, prepared.name) == ("dan", "cpu", "preprocess|step two")
    assert (prepared.cpus, prepared.ram) == (16.0, 64000)
    assert workload.jobs[5].ram == 1024 * 1024
    assert workload.notes == [
        "2 jobs skipped: never started.",
        "1 job skipped: not ended.",
        "1 job skipped: the run time is zero.",
        "1 job requests cores only.",
    ]


def test_sacct_with_other_columns_numbers_for_times_and_a_bar_at_the_end(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "JobIDRaw|Submit|Start|End|TimelimitRaw|AllocTRES|\n"
        "7|1700000000|1700000100|1700000160|90|cpu=4,gres/gpu:a100=1,gres/gpu:v100=1|\n",
    )
    assert detect.read(path).jobs == [
        TraceJob(
            submit_time=0.0,
            duration=60.0,
            gpus=2.0,
            cpus=4.0,
            time_limit=5400,
            gpu_models=("a100", "v100"),
        )
    ]


@pytest.mark.parametrize(
    ("text", "line", "keyword"),
    [
        ("JobID|Submit|Elapsed\n", 1, "AllocTRES is missing"),
        ("JobID|Submit|Elapsed|AllocTRES\n1|noon|00:01:00|gres/gpu=1\n", 2, "Submit 'noon'"),
        ("JobID|Submit|Elapsed|AllocTRES\n1|0|soon|gres/gpu=1\n", 2, "Elapsed 'soon'"),
        ("JobID|Submit|Elapsed|AllocTRES\n1|0|00:01:00|gres/gpu=x\n", 2, "gres/gpu 'x'"),
        (
            "JobID|Submit|Elapsed|Timelimit|AllocTRES\n1|0|00:01:00|long|gres/gpu=1\n",
            2,
            "Timelimit 'long'",
        ),
        ("JobID|Submit|Elapsed|AllocTRES\n1|0|00:01:00\n", 2, "expected 4 cells"),
    ],
)
def test_bad_sacct_output_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, keyword: str
) -> None:
    message = refusal(written(tmp_path, text))
    assert message.startswith(f"FILE, line {line}: ")
    assert keyword in message


def test_swf_has_processors_for_gpus_and_the_machine_of_its_header() -> None:
    workload = detect.read(SAMPLES / "swf/example.swf")
    assert workload.jobs[0] == TraceJob(
        submit_time=0.0,
        duration=8936.0,
        gpus=4.0,
        user="user5",
        name="program2",
        queue="queue2",
        time_limit=18472,
    )
    assert (len(workload.jobs), len(workload.nodes)) == (27, 16)
    assert {len(node.types["gpu"]) for node in workload.nodes} == {8}
    assert workload.notes == [
        "One processor is replayed as one GPU.",
        "The cluster has 16 nodes with 8 processors each.",
        "2 jobs skipped: the run time is zero or missing.",
        "1 job skipped: part of a job that has a line of its own.",
    ]


@pytest.mark.parametrize(
    ("header", "nodes", "note"),
    [
        ("", [], "The header has no cluster size."),
        ("; MaxProcs: 430\n; MaxNodes: 338\n", [430], "The cluster is one pool of 430 processors."),
        ("; MaxProcs: 128\n; MaxNodes: 128\n", [128], "The cluster is one pool of 128 processors."),
        (";MaxNodes: 3 (was 4)\n", [3], "The cluster is one pool of 3 processors."),
    ],
)
def test_swf_machines(tmp_path: Path, header: str, nodes: list[int], note: str) -> None:
    line = "1 0 -1 10 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
    workload = detect.read(written(tmp_path, header + line))
    assert [len(node.types["gpu"]) for node in workload.nodes] == nodes
    assert workload.notes == ["One processor is replayed as one GPU.", note]
    assert workload.jobs == [TraceJob(submit_time=0.0, duration=10.0)]


def test_bad_swf_is_refused_with_its_line(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "; Version: 2\n1 2 3\n"))
    assert message.startswith("FILE, line 2: expected 18 numbers")
    line = "1 0 -1 x 1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
    message = refusal(written(tmp_path, "; Version: 2\n" + line))
    assert message.startswith("FILE, line 2: a cell is not a number")


# -- machines -----------------------------------------------------------------------------


def shape(text: str) -> list[tuple[str, int, str | None]]:
    return [
        (node.name, len(node.types["gpu"]), node.types["gpu"][0].model)
        for node in sizing.parse_cluster(text)
    ]


def test_machines_as_they_are_typed() -> None:
    assert shape("2x8") == [("node0001", 8, None), ("node0002", 8, None)]
    assert shape("1x4:v100 + 2x2:p100") == [
        ("node0001", 4, "v100"), ("node0002", 2, "p100"), ("node0003", 2, "p100"),
    ]  # fmt: skip
    assert len(sizing.parse_cluster("20000x4")) == 20000
    assert sizing.parse_cluster("20000x4")[0].name == "node00001"


def test_options_of_the_last_nodes_apply_to_all_nodes_without_options() -> None:
    first, second = sizing.parse_cluster("1x4:v100,cpus=32+1x4:p100,cpus=64,ram=512G,memory=16G")
    assert first.types["cpu"][0].capacity == 32_000
    assert second.types["cpu"][0].capacity == 64_000
    for node in (first, second):
        assert [facts.name for facts in (*node.types["cpu"], *node.types["mem"])] == ["pool"] * 2
        assert node.types["mem"][0].capacity == 512 * 1024
        assert node.types["gpu"][3].memory == 16 * 1024


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("8y8", "NODESxGPUS"),
        ("0x8", "NODESxGPUS"),
        ("", "NODESxGPUS"),
        ("2x4,gpu=3", "unknown option 'gpu=3'"),
        ("2x4,cpus=x", "cpus=x"),
        ("2x0", "without resources"),
        ("9999999x9", "100,000 nodes"),
        ("1000000x8", "100,000 nodes"),
        ("9x999999", "1,000,000 GPUs"),
    ],
)
def test_an_invalid_cluster_is_refused(text: str, keyword: str) -> None:
    with pytest.raises(BadValue) as caught:
        sizing.parse_cluster(text)
    assert str(caught.value).startswith(f"--cluster '{text}'")
    assert keyword in str(caught.value)


def load(at: float, seconds: float, gpus: float, **more: object) -> TraceJob:
    return TraceJob(submit_time=at, duration=seconds, gpus=gpus, **more)  # type: ignore[arg-type]


def test_as_many_machines_as_the_load_asks_for() -> None:
    jobs = [load(0, 800, 4), load(500, 800, 4), load(1000, 800, 8)]
    nodes = sizing.nodes_for_load(Workload(title="", jobs=jobs), load=0.8)
    # 12,800 GPU-seconds in 1,000 s at 80 %: 16 GPUs.
    assert [len(node.types["gpu"]) for node in nodes] == [8, 8]
    assert len(sizing.nodes_for_load(Workload(title="", jobs=jobs), load=0.8, gpus_per_node=4)) == 4


def test_the_largest_job_always_fits() -> None:
    jobs = [load(0, 1, 17), load(1e6, 1, 1)]
    assert len(sizing.nodes_for_load(Workload(title="", jobs=jobs))) == 3


def test_jobs_that_come_all_at_once_get_machines_too() -> None:
    assert len(sizing.nodes_for_load(Workload(title="", jobs=[load(0, 60, 8)] * 8))) == 8


def test_there_are_no_more_machines_than_all_jobs_at_once_could_use() -> None:
    assert (
        len(sizing.nodes_for_load(Workload(title="", jobs=[load(0, 36000, 2), load(5, 36000, 2)])))
        == 1
    )


def test_machines_have_the_models_cores_and_memory_that_jobs_ask_for() -> None:
    jobs = [
        load(0, 100, 1, gpu_models=("a100",), cpus=48.0, ram=1000),
        load(0, 100, 1),
        load(100, 100, 2, gpu_models=("v100",)),
    ]
    nodes = sizing.nodes_for_load(Workload(title="", jobs=jobs))
    assert [node.types["gpu"][0].model for node in nodes] == ["a100", "v100"]
    assert {node.types["cpu"][0].capacity for node in nodes} == {48_000}
    assert {node.types["mem"][0].capacity for node in nodes} == {1000}


def test_machines_are_of_the_model_on_which_jobs_are_fastest() -> None:
    class Uneven:
        def rate(self, done: float, gpus: int, machines: int, model: str) -> float:
            return {"k80": 0.2, "p100": 0.5, "v100": 1.0}[model]

        def beside(self, other: object, model: str) -> float:
            return 0.0

    job = load(0, 100, 4, gpu_models=("k80", "v100", "p100"), speed=Uneven())
    (node,) = sizing.nodes_for_load(Workload(title="", jobs=[job]))
    assert {facts.model for facts in node.types["gpu"]} == {"v100"}


def test_jobs_of_processors_only_get_machines_without_gpus() -> None:
    jobs = [load(0, 100, 0, cpus=64.0), load(100, 100, 0, cpus=64.0)]
    nodes = sizing.nodes_for_load(Workload(title="", jobs=jobs))
    assert [list(node.types) for node in nodes] == [["cpu"]] * 2


def test_a_workload_is_fitted_to_machines_that_say_less() -> None:
    jobs = [
        load(0, 1, 1, cpus=4.0, gpu_models=("a100",)),
        load(1, 1, 0, cpus=4.0),
        load(2, 1, 64),
        load(3, 1, 16),
    ]
    given = Workload(title="x", jobs=jobs, notes=["before"])
    fitted = sizing.fit_workload(given, sizing.parse_cluster("2x8"))
    assert fitted.jobs == [load(0, 1, 1), load(3, 1, 16)]
    assert fitted.notes == [
        "before",
        "Requested cores ignored: no node specifies any.",
        "Requested GPU models ignored: no node specifies any.",
        "2 jobs skipped: this cluster cannot run them.",
    ]
    roomy = sizing.parse_cluster("8x8:a100,cpus=64")
    assert sizing.fit_workload(given, roomy) is given
    others = sizing.fit_workload(given, sizing.parse_cluster("8x8:NVIDIA V100,cpus=64"))
    assert others.jobs == jobs[1:]
    assert sizing.fit_workload(given, sizing.parse_cluster("8x8:NVIDIA A100,cpus=64")) is given


@pytest.mark.parametrize(
    ("job", "cluster", "fits"),
    [
        ({"gpus": 12}, "2x8", True),
        ({"gpus": 12}, "1x8+1x4", False),  # six on each of two
        ({"gpus": 12}, "1x8+1x6", True),
        ({"gpus": 17}, "2x8", False),
        ({"gpus": 1, "cpus": 65.0}, "2x8,cpus=64", False),
        ({"gpus": 16, "cpus": 65.0}, "2x8,cpus=64", True),
        ({"gpus": 1, "ram": 2048}, "2x8,ram=1G", False),
        ({"gpus": 0.5, "gpu_memory": 2048}, "2x8,memory=1G", False),
        ({"gpus": 8, "gpu_models": ("V100",)}, "1x8:tesla v100+1x8:k80", True),
        ({"gpus": 9, "gpu_models": ("V100",)}, "1x8:tesla v100+1x8:k80", False),
        ({"gpus": 9, "gpu_models": ("V100", "k80")}, "1x8:tesla v100+1x8:k80", True),
    ],
)
def test_a_job_is_kept_if_it_could_run_alone(
    job: dict[str, object], cluster: str, fits: bool
) -> None:
    jobs = [load(0, 1, **job), load(0, 1, 1)]  # type: ignore[arg-type]
    kept = sizing.fit_workload(Workload(title="", jobs=jobs), sizing.parse_cluster(cluster)).jobs
    assert kept == (jobs if fits else jobs[1:])


def test_the_number_of_nodes_is_limited() -> None:
    with pytest.raises(BadValue, match="large enough for these jobs has more than 100,000 nodes"):
        sizing.nodes_for_load(Workload(title="x", jobs=[load(0, 3e8, 100_000)] * 9))
