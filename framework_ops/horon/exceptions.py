# SPDX-License-Identifier: Apache-2.0
"""What horon raises.

Wrong arguments are ValueError or TypeError, a passed time limit is TimeoutError. Where the library
itself says so, where all ranks raise what went wrong on some, and where a step fails, they have the
attributes of a HoronInternalError.
"""

_ATTRIBUTES = ("status", "cause", "rank", "other_rank", "host", "name")


class HoronInternalError(RuntimeError):
    """An operation, or the job, failed: a rank is lost, ranks disagree, horon was shut down.

    The text names rank, host, tensor and cause; the attributes are the same for programs.

    `status` is the code of the C ABI, `status_name` its name, such as "ERR_PEER_LOST". `cause` is
    the name of a row of HORON_CAUSE_MAP in horon.h, such as "DIED" or "VERB". `rank` is the one to
    blame, or the lower one of two that differ, and `other_rank` the second one, or the one that was
    waited for; None: none, or not known. `host` is that of `rank`, `name` the operation's, or "".
    `input_lost` is True where an operation in place may have written over its input; it is of this
    rank, and no part of `about`.
    """

    input_lost = False

    def __init__(
        self,
        message: str = "",
        status: int = 0,
        cause: str = "NONE",
        rank: int | None = None,
        other_rank: int | None = None,
        host: str = "",
        name: str = "",
    ):
        super().__init__(message)
        tell_about(self, status, cause, rank, other_rank, host, name)

    @property
    def about(self) -> tuple:
        """All but the text, to make another exception with."""
        return about_of(self)

    @property
    def status_name(self) -> str:
        names = {code: name for name, code in _codes().items()}
        return names.get(self.status, "unknown")


HorovodInternalError = HoronInternalError


class NotInitializedError(HoronInternalError, ValueError):
    """A call that needs a context, before init() or after shutdown(). With Horovod questions raise
    ValueError then, and operations HorovodInternalError."""


class UnsupportedError(HoronInternalError, NotImplementedError):
    """A reduction that does not exist, where Horovod raises HorovodInternalError."""


def _codes():
    from horon import _horon  # which needs this module

    return _horon.STATUSES


def tell_about(error, status, cause, rank=None, other_rank=None, host="", name=""):
    """-> the exception, of any class, with the attributes of a HoronInternalError

    status: the code, or its name
    """
    status = _codes()[status] if isinstance(status, str) else status
    for attribute, value in zip(
        _ATTRIBUTES, (status, cause, rank, other_rank, host, name), strict=True
    ):
        setattr(error, attribute, value)
    return error


def about_of(error: BaseException) -> tuple | None:
    """What tell_about() has told, or the library; None for any other exception.

    Python's own exceptions may have a `name`, too, of an attribute or a module.
    """
    if not all(hasattr(error, attribute) for attribute in _ATTRIBUTES):
        return None
    return tuple(getattr(error, attribute) for attribute in _ATTRIBUTES)


def operation_of(error: BaseException) -> str:
    """The name of the operation that the library says an exception is about, or ""."""
    return error.name if about_of(error) else ""


_CONTROLS = {
    code: "?" for code in (*range(ord(" ")), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def clean(text: str) -> str:
    """A text of another rank, without what a terminal would obey."""
    return text.translate(_CONTROLS)


def text_of(error: BaseException) -> str:
    """What an exception says, or the name of its class: never nothing, and never an error."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # the application's own __str__
        return type(error).__name__


def describe(error: BaseException) -> str:
    """The class of an exception and, if it says something, what."""
    name, text = type(error).__name__, text_of(error)
    return name if text == name else f"{name}: {text}"
