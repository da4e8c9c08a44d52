# SPDX-License-Identifier: Apache-2.0
"""What horon raises.

Wrong arguments are ValueError or TypeError, a passed time limit is TimeoutError.
"""


class HoronInternalError(RuntimeError):
    """An operation, or the job, failed: a rank is lost, ranks disagree, horon was shut down.

    The text names rank, host, tensor and cause. `status` is the code of the C ABI, `status_name`
    its name, such as "ERR_PEER_LOST".
    """

    def __init__(self, message: str = "", status: int = 0):
        super().__init__(message)
        self.status = status

    @property
    def status_name(self) -> str:
        from horon import _horon

        names = {code: name for name, code in _horon.STATUSES.items()}
        return names.get(self.status, "unknown")


HorovodInternalError = HoronInternalError


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
