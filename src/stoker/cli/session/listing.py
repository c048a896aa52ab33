"""Options of every command that lists jobs: JSON lines, a format, a choice of columns."""

from __future__ import annotations

from stoker.cli.options import Args, Option
from stoker.cli.output.job_table import field_text
from stoker.cli.output.table import Column
from stoker.client import fast_json
from stoker.client.client import Client
from stoker.client.errors import UsageError
from stoker.client.route import listed_user
from stoker.wire import JsonObject

LIST_OPTIONS = (
    Option("--json-lines", None, "print one JSON object per line"),
    Option("--format", "TEXT", "one line per job: '{id} {state}'"),
    Option("-o/--columns", "LIST", "columns to print: label,name,state", key="columns"),
    Option("--no-header", None, "print no header line"),
)


USER_OPTIONS = (
    Option("-u/--user", "NAME", "only jobs of this user"),
    Option("--all-users", None, "jobs of all users of a system daemon, not only yours"),
)


def chosen_user(client: Client, args: Args) -> str | None:
    """Return the user whose jobs are listed; None: those that are named, or of all users."""
    if args.text("user") is not None or args.words or args.flag("all_users"):
        return args.text("user")
    if isinstance(client.path, str):
        return listed_user(client.path)
    status = client.daemon()  # over TCP the daemon knows the user, by the token
    return status["user"] if status["mode"] == "system" else None


def format_lines(args: Args, views: list[JsonObject]) -> list[str] | None:
    """Return the lines for --json-lines or --format; None without these options."""
    if args.flag("json_lines"):
        return [fast_json.dumps(view) for view in views]
    template = args.text("format")
    if template is None:
        return None
    template = template.replace("\\t", "\t").replace("\\n", "\n")
    try:
        return [
            template.format_map({key: field_text(value) for key, value in view.items()})
            for view in views
        ]
    except KeyError as error:
        raise _no_such_field(str(error.args[0]), views) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"--format cannot be read: {error}.") from None


def select_columns(
    args: Args, views: list[JsonObject]
) -> tuple[list[Column], list[list[str]]] | None:
    """Return the columns and rows for -o; None without this option."""
    columns = args.text("columns")
    if columns is None:
        return None
    names = [name.strip().lower() for name in columns.split(",") if name.strip()]
    for name in names:
        if views and name not in views[0]:
            raise _no_such_field(name, views)
    rows = [[field_text(view.get(name)) for name in names] for view in views]
    return [Column(name.upper(), cut=True) for name in names], rows


def _no_such_field(name: str, views: list[JsonObject]) -> UsageError:
    """Return the error for an unknown field."""
    fields = ", ".join(sorted(views[0])) if views else ""
    return UsageError(f"Jobs have no field {name!r}. There are: {fields}.")
