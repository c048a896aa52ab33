"""Pods that share GPUs, and the machines of their cluster."""

from pathlib import Path

import pytest

from stoker.core.model.resources import DeviceFacts
from stoker.simulate.traces import detect
from stoker.simulate.traces.errors import TraceError
from stoker.simulate.traces.formats import openb

SAMPLE = Path(__file__).parent / "traces" / "openb" / "openb_pod_list_default.csv"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"


def pods(folder: Path, *lines: str, machines: str | None = None) -> Path:
    path = folder / "pods.csv"
    path.write_text(HEAD + "".join(f"{line}\n" for line in lines))
    if machines is not None:
        (folder / "my_node_list.csv").write_text(
            "sn,cpu_milli,memory_mib,gpu,model\n" + machines + "\n"
        )
    return path


def test_the_sample_has_pods_and_machines():
    workload = openb.read(SAMPLE)
    assert (len(workload.jobs), len(workload.nodes)) == (51, 31)
    first = workload.jobs[0]
    assert (first.submit_time, first.duration) == (0.0, 12902960 - 2690044)
    assert (first.gpus, first.cpus, first.ram, first.gpu_models) == (0.46, 6.0, 12288, ())
    assert [job.submit_time for job in workload.jobs] == sorted(
        job.submit_time for job in workload.jobs
    )


def test_a_machine_has_pools_and_gpus_of_a_model(tmp_path: Path):
    path = pods(tmp_path, "a,1,1,1,1000,,0,5", machines="n1,64000,262144,2,P100\nn2,8000,1024,0,")
    gpus, none = openb.read(path).nodes
    assert gpus.types == {
        "cpu": (DeviceFacts("pool", 64000),),
        "mem": (DeviceFacts("pool", 262144),),
        "gpu": tuple(DeviceFacts(str(n), index=n, model="P100") for n in range(2)),
    }
    assert (none.name, set(none.types)) == ("n2", {"cpu", "mem"})


def test_a_pod_asks_for_parts_models_and_nothing(tmp_path: Path):
    jobs = openb.read(
        pods(
            tmp_path, "a,500,10,1,250,V100M16|V100M32,3,5", "b,1000,10,8,1000,,4,9",
            "c,1000,10,0,0,,5,9", "d,1000,10,2,500,,6,9",
        )
    )  # fmt: skip
    assert [job.gpus for job in jobs.jobs] == [0.25, 8.0, 0.0, 2.0]
    assert jobs.jobs[0].gpu_models == ("V100M16", "V100M32")
    assert (jobs.jobs[0].cpus, jobs.jobs[0].submit_time, jobs.jobs[1].submit_time) == (
        0.5,
        0.0,
        1.0,
    )
    assert jobs.notes == [
        "1 job requests parts of several GPUs: rounded up to whole GPUs.",
        "No node table (*node_list*.csv) found in the same folder.",
    ]


def test_pods_without_an_end_or_a_duration_are_left_out(tmp_path: Path):
    workload = openb.read(
        pods(tmp_path, "a,1,1,1,1000,,0,", "b,1,1,1,1000,,7,7", "c,1,1,1,1000,,7,8")
    )
    assert len(workload.jobs) == 1
    assert workload.notes[:2] == [
        "1 job skipped: no creation or deletion time.",
        "1 job skipped: the run time is zero.",
    ]


@pytest.mark.parametrize(
    ("line", "keyword"),
    [
        ("a,x,1,1,1000,,0,5", "line 2: cpu_milli 'x'"),
        ("a,1,-1,1,1000,,0,5", "line 2: memory_mib '-1'"),
        ("a,1,1,1,1001,,0,5", "line 2: gpu_milli is 1001"),
        ("a,1,1,1,1000,,soon,5", "line 2: creation_time 'soon'"),
        ("a,1,,1,1000,,0,5", "line 2: memory_mib ''"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, line: str, keyword: str):
    with pytest.raises(TraceError, match=keyword):
        openb.read(pods(tmp_path, line))


def test_a_bad_node_table_is_named(tmp_path: Path):
    path = pods(tmp_path, "a,1,1,1,1000,,0,5", machines="n1,64000,262144,many,P100")
    with pytest.raises(TraceError, match=r"my_node_list.csv, line 2: gpu 'many'"):
        openb.read(path)


@pytest.mark.parametrize("name", ["a_node_list_all.csv", "z_node_list_all.csv"])
def test_of_two_node_tables_the_one_that_is_a_part_of_the_other_is_read(tmp_path: Path, name: str):
    path = pods(tmp_path, "a,1,1,1,1000,,0,5", machines="n1,64000,262144,8,P100")
    nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,64000,262144,8,P100\n"
    (tmp_path / name).write_text(nodes)
    workload = openb.read(path)
    assert [node.name for node in workload.nodes] == ["n1"]
    assert workload.notes == [f"Node table {name} ignored: another one lists a part of it."]
    (tmp_path / name).write_text(nodes.replace("n1", "n2"))
    with pytest.raises(TraceError, match="Several node tables"):
        openb.read(path)


def test_a_list_without_times_is_read_in_its_order():
    workload = detect.read(SAMPLE.with_name("openb_pod_list_multigpu50.csv"))
    assert [(job.submit_time, job.duration, job.gpus, job.cpus) for job in workload.jobs] == [
        (0.0, 3600.0, 1.0, 12.0), (1.0, 3600.0, 0.46, 6.0), (2.0, 3600.0, 0.0, 20.0),
        (3.0, 3600.0, 8.0, 88.0), (4.0, 3600.0, 2.0, 6.0), (5.0, 3600.0, 4.0, 60.2),
    ]  # fmt: skip
    assert len(workload.nodes) == 31
    assert workload.notes == [
        "No times: one job is submitted per second, in this order, and runs one hour."
    ]


def test_a_table_without_a_column_is_refused(tmp_path: Path):
    path = tmp_path / "pods.csv"
    path.write_text("name,cpu_milli\na,1\n")
    with pytest.raises(TraceError, match="add memory_mib"):
        openb.read(path)
