"""Workloads of the Gavel study: steps become seconds by what was measured beside them."""

import gzip
import pickle
import shutil
from pathlib import Path

import pytest

from stoker.simulate.traces import detect
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.formats import gavel
from stoker.simulate.traces.formats.pollux import TrainingSpeed
from stoker.simulate.workload import TraceJob

SAMPLE = Path(__file__).parent / "traces" / "gavel"
SMALL = "Transformer (batch size 128)"
LARGE = "Transformer (batch size 256)"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path / "gavel")
    return tmp_path / "gavel" / "jobs.trace"


def jobs() -> dict[str, TraceJob]:
    return {f"{job.name} × {job.gpus:g}": job for job in gavel.read(SAMPLE / "jobs.trace").jobs}


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        gavel.read(path)
    return str(caught.value).replace(str(path), "FILE")


def line_of(path: Path, place: int, cell: str) -> None:
    """Replace one cell of the first line."""
    first, *rest = path.read_text().splitlines(keepends=True)
    row = first.split("\t")
    row[place] = cell
    path.write_text("\t".join(row) + "".join(rest))


def test_jobs_come_by_time_with_their_gpus_and_kinds() -> None:
    found = gavel.read(SAMPLE / "jobs.trace").jobs
    assert [(job.submit_time, job.gpus, job.name) for job in found] == [
        (0.0, 4.0, "ResNet-18 (batch size 128)"),
        (0.0, 1.0, LARGE),
        (0.0, 1.0, SMALL),
        (0.0, 1.0, "ResNet-50 (batch size 64)"),
        (41249.0, 2.0, "ResNet-50 (batch size 128)"),
    ]


def test_seconds_are_those_on_the_fastest_model() -> None:
    found = jobs()
    assert found[f"{SMALL} × 1"].duration == pytest.approx(4967 / 5.4461)  # a V100
    assert found[f"{LARGE} × 1"].duration == pytest.approx(1271 / 1.6777)  # a P100


def test_the_rate_on_other_models_is_relative_to_the_fastest() -> None:
    speed = jobs()[f"{SMALL} × 1"].speed
    assert speed is not None
    assert speed.rate(0.0, 1, 1, "v100") == 1.0
    assert speed.rate(0.5, 1, 1, "p100") == pytest.approx(3.0735 / 5.4461)
    assert speed.rate(0.5, 1, 1, "NVIDIA Tesla K80") == pytest.approx(0.9816 / 5.4461)
    assert speed.rate(0.0, 1, 1, "a100") == 0.0


def test_gpus_of_several_machines_have_their_own_rate() -> None:
    speed = jobs()["ResNet-18 (batch size 128) × 4"].speed
    assert speed is not None
    assert speed.rate(0.0, 4, 1, "v100") == 1.0
    assert speed.rate(0.0, 4, 2, "v100") == pytest.approx(35.3607 / 69.9505)
    assert speed.rate(0.0, 3, 1, "v100") == 0.0  # on three nobody has measured it


def test_a_job_runs_only_on_models_on_which_it_fits() -> None:
    found = jobs()
    assert found["ResNet-50 (batch size 128) × 2"].gpu_models == ("p100", "v100")
    assert found[f"{SMALL} × 1"].gpu_models == ("k80", "p100", "v100")


def test_what_remains_beside_another_is_relative_to_the_same_model_alone() -> None:
    found = jobs()
    small, large = found[f"{SMALL} × 1"].speed, found[f"{LARGE} × 1"].speed
    assert small is not None
    assert large is not None
    assert small.interference(large, "p100") == pytest.approx(1.5067 / 3.0735)
    assert large.interference(small, "p100") == pytest.approx(0.8029 / 1.6777)
    assert small.interference(small, "k80") == pytest.approx(0.4698 / 0.9816)


def test_jobs_that_do_not_fit_or_were_never_measured_together_share_no_gpu() -> None:
    found = jobs()
    small, large = found[f"{SMALL} × 1"].speed, found[f"{LARGE} × 1"].speed
    four = found["ResNet-18 (batch size 128) × 4"].speed
    assert small is not None
    assert large is not None
    assert four is not None
    assert large.interference(large, "v100") == 0.0
    assert small.interference(large, "k80") == 0.0
    assert small.interference(four, "v100") == 0.0
    assert small.interference(small, "a100") == 0.0
    assert small.interference(TrainingSpeed.__new__(TrainingSpeed), "v100") == 0.0


def test_measurements_may_be_compressed(copy: Path) -> None:
    plain = copy.parent / "simulation_throughputs.json"
    plain.with_suffix(".json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    seconds = [job.duration for job in gavel.read(copy).jobs]
    assert seconds == [job.duration for job in gavel.read(SAMPLE / "jobs.trace").jobs]


def test_older_files_without_directories_are_read_too(copy: Path) -> None:
    rows = [line.split("\t") for line in copy.read_text().splitlines()]
    copy.write_text("\n".join("\t".join([*row[:2], *row[3:]]) for row in rows))
    expected = gavel.read(SAMPLE / "jobs.trace").jobs
    assert [(job.submit_time, job.duration) for job in gavel.read(copy).jobs] == [
        (job.submit_time, job.duration) for job in expected
    ]


def test_kinds_that_were_not_measured_are_left_out_and_counted(copy: Path) -> None:
    line_of(copy, 0, "GPT-7")
    workload = gavel.read(copy)
    assert len(workload.jobs) == 4
    assert (
        "1 job skipped: no speed was measured for this kind of job and number of "
        "GPUs." in workload.notes
    )


def test_a_trace_without_measurements_is_refused(copy: Path) -> None:
    (copy.parent / "simulation_throughputs.json").unlink()
    assert "simulation_throughputs.json" in refusal(copy)


@pytest.mark.parametrize("text", ["{", "[]", '{"v100": {"x": {"null": "fast"}}}'])
def test_measurements_that_are_none_are_refused(copy: Path, text: str) -> None:
    (copy.parent / "simulation_throughputs.json").write_text(text)
    assert "simulation_throughputs.json contains no speeds (" in refusal(copy)


@pytest.mark.parametrize(
    ("place", "cell", "keyword"),
    [
        (5, "many", "steps 'many'"),
        (5, "0", "steps '0'"),
        (6, "0", "GPUs '0'"),
        (6, "1.5", "GPUs '1.5'"),
        (9, "nan\n", "submission 'nan'"),
        (9, "1e300\n", "submission '1e300'"),
        (0, "a\tb", "expected 10 or 12 cells"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(
    copy: Path, place: int, cell: str, keyword: str
) -> None:
    line_of(copy, place, cell)
    assert refusal(copy).startswith(f"FILE, line 1: {keyword}")


# -- Shockwave --------------------------------------------------------------------------

SHOCKWAVE = SAMPLE.parent / "shockwave" / "jobs.trace"


def test_a_shockwave_trace_has_its_durations_in_seconds_and_needs_no_other_file() -> None:
    assert detect.detect_format(SHOCKWAVE) == "gavel"
    workload = detect.read(SHOCKWAVE)
    assert [(job.submit_time, job.duration, job.gpus) for job in workload.jobs] == [
        (0.0, 1418.0, 1.0), (55.0, 3338.0, 1.0), (64.0, 13462.0, 1.0), (73.0, 2815.0, 1.0),
        (346.0, 1942.0, 2.0), (1106.0, 16778.0, 4.0), (1322.0, 720.0, 1.0),
    ]  # fmt: skip
    assert workload.jobs[0].name == "LM (batch size 10)"
    assert (workload.jobs[0].steps, workload.jobs[0].speed) == (134583.0, None)
    assert not workload.profiled
    assert workload.notes == [
        "6 jobs grow the batch size in the study: the durations are those of the initial one."
    ]


@pytest.mark.parametrize(
    ("place", "cell", "keyword"),
    [(10, "-5", "duration '-5'"), (10, "0", "duration '0'"), (6, "0", "GPUs '0'")],
)
def test_a_bad_line_of_a_shockwave_trace_is_refused(
    tmp_path: Path, place: int, cell: str, keyword: str
) -> None:
    path = tmp_path / "jobs.trace"
    shutil.copy(SHOCKWAVE, path)
    line_of(path, place, cell)
    assert refusal(path).startswith(f"FILE, line 1: {keyword}")


def test_a_pickle_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "result.pickle"
    path.write_bytes(pickle.dumps({"jobs": []}))
    with pytest.raises(TraceError, match="is a Python pickle"):
        detect.read(path)
