"""Fields that were renamed keep the names under which earlier versions stored them."""

import msgspec
import pytest

from stoker.core.events import ForeignUseChanged, HistoryCleared, ProfileImported
from stoker.core.model.job import Progress, StopRequest
from stoker.core.model.profile import JobProfile
from stoker.core.model.resources import GpuRequest, ResourceRequest
from stoker.core.model.spec import Container, Spec
from stoker.core.model.sweep import Sweep
from stoker.core.state.record import ClusterRecord, Unreachable

STORED_NAMES: dict[type[msgspec.Struct], dict[str, str]] = {
    ClusterRecord: {
        "foreign_use": "strangers",
        "history_cleared": "cleared",
        "unreachable": "away",
        "cordoned": "closed",
        "foreign_load": "others",
        "abandoned_attempts": "strays",
        "profiles": "families",
        "missing_devices": "lacking",
        "queues_with_progress": "reporting",
    },
    Container: {"in_job_directory": "here"},
    ForeignUseChanged: {"foreign_user": "stranger"},
    GpuRequest: {
        "required": "only",
        "ignore_foreign_use": "despite_strangers",
        "allowed": "within",
        "fixed_share": "share",
        "shareable": "beside",
        "on_idle_gpus": "idle",
        "max_amount": "most",
    },
    HistoryCleared: {"client": "door"},
    JobProfile: {"epoch_times": "paces", "interference": "beside"},
    ProfileImported: {"profile": "family", "epoch_times": "paces", "interference": "beside"},
    Progress: {
        "epochs_at_start": "since",
        "accepts_stop": "listening",
        "oom_count": "shortages",
        "exceeded_reservation": "grew",
        "shared_gpu": "shared",
        "exclusive_only": "alone",
        "overran": "demoted",
        "previous_runtime": "ran",
        "epoch_started_at": "counted_at",
        "epoch_time": "pace",
        "epoch_times": "paces",
    },
    ResourceRequest: {"node_count": "machines", "queue_devices": "among"},
    Spec: {
        "early_signal": "warning",
        "client": "door",
        "exported_variables": "asked",
        "transfer": "carry",
        "requeueable": "restartable",
        "non_preemptible": "steady",
    },
    StopRequest: {
        "reason": "why",
        "requested_boot": "boot",
        "preemptor": "by",
        "resize_to": "gpus",
        "timed_out": "ignored",
    },
    Sweep: {"failures_accepted": "forgiven"},
    Unreachable: {"boot_time": "boot", "reason": "why"},
}


@pytest.mark.parametrize("kind", STORED_NAMES, ids=lambda kind: kind.__name__)
def test_renamed_fields_keep_their_stored_names(kind: type[msgspec.Struct]) -> None:
    stored = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    assert STORED_NAMES[kind].items() <= stored.items()
