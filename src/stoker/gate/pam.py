"""PAM account and session of a user, through libpam; the limits of pam_limits are set by it."""

from __future__ import annotations

import ctypes
import os

from stoker.gate.accounts import NotAllowed

SUCCESS, CONVERSATION_ERROR = 0, 19
DIRECTORIES = ("/etc/pam.d", "/usr/lib/pam.d", "/usr/etc/pam.d")

_Converse = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


class _Conversation(ctypes.Structure):
    """`struct pam_conv`."""

    _fields_ = (("converse", _Converse), ("data", ctypes.c_void_p))


def _no_answer(*_: object) -> int:
    return CONVERSATION_ERROR  # no terminal: a module that asks a question fails


_CONVERSE = _Converse(_no_answer)


def is_configured(service: str) -> bool:
    """Return whether there is a PAM service of this name."""
    return bool(service) and any(os.path.exists(f"{d}/{service}") for d in DIRECTORIES)


def open_session(service: str, name: str) -> None:
    """Check the account and open a session for this process, or raise NotAllowed.

    The session is not closed: its process becomes the user, which could not do it. Modules that
    need an end of the session (pam_systemd, pam_mount) do not belong into the service.
    """
    try:
        library = ctypes.CDLL("libpam.so.0")
    except OSError as error:
        raise NotAllowed(f"PAM service {service} exists, but libpam does not: {error}") from None
    handle = ctypes.c_void_p()
    conversation = _Conversation(_CONVERSE, None)
    names = (ctypes.c_char_p(service.encode()), ctypes.c_char_p(name.encode()))
    steps = (
        ("start", "pam_start", (*names, ctypes.byref(conversation), ctypes.byref(handle))),
        ("account", "pam_acct_mgmt", (handle, 0)),
        ("session", "pam_open_session", (handle, 0)),
    )
    library.pam_strerror.restype = ctypes.c_char_p
    for step, function, arguments in steps:
        code = library[function](*arguments)
        if code != SUCCESS:
            text = library.pam_strerror(handle, code).decode(errors="replace")
            raise NotAllowed(f"PAM refused {name} ({step}): {text}")
