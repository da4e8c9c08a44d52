# SPDX-License-Identifier: Apache-2.0
"""Where Horovod has its elastic mode: says that there is none here, and what there is."""

raise ImportError(
    "horon has no elastic mode yet: a job keeps the ranks that it began with. Where one is lost, "
    "its operations raise HorovodInternalError; save state_dict()s with torch.save(), start the "
    "job again, load them on one rank and hand them on with broadcast_parameters(), "
    "broadcast_optimizer_state() and broadcast_object(). What does not need the lost rank may go "
    "on with the others, in process sets, under horonrun --keep-survivors"
)
