"""From a request body to a Spec."""

from __future__ import annotations

import os

from msgspec.structs import replace

from stoker.core.model.spec import Spec
from stoker.core.model.units import BadValue
from stoker.core.options.submit import ParsedOptions
from stoker.daemon.context import RequestContext, content_hash
from stoker.daemon.submission.checks import check_upload_paths
from stoker.daemon.submission.training import check_directories
from stoker.schema import requests as r


def build_spec(
    context: RequestContext, body: r.Submit, wanted: ParsedOptions, environment: str,
    blobs: dict[str, bytes],
) -> Spec:  # fmt: skip
    """Return the Spec of a submission; its script is added to `blobs`."""
    what = body.what
    kind = "argv" if what.argv is not None else "line"
    script = None
    name = ""
    if what.script is not None:
        text = what.script.encode()
        kind = "script" if text.startswith(b"#!") else "shell-script"
        script = content_hash(text)
        blobs[script] = text
        name = os.path.basename(what.script_name or "") or "script"
    fields = dict(wanted.fields)
    directory = os.path.join(body.directory, fields.pop("directory", None) or ".")
    if not context.is_system:  # which may not see the files of its users
        if not os.path.isdir(directory):
            raise BadValue(f"The directory {directory} does not exist.")
        check_upload_paths(os.path.normpath(directory), fields.get("transfer"))
        check_directories(fields)
    spec = Spec(
        kind=kind, user=context.submitter, directory=os.path.normpath(directory), shell=body.shell,
        environment=environment, request=wanted.request, name=name, umask=body.umask,
        script=script, script_name=what.script_name, args=tuple(what.args), uid=context.uid,
    )  # fmt: skip
    fields["name"] = fields.get("name") or name
    return replace(spec, **{key: value for key, value in fields.items() if value is not None})
