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
