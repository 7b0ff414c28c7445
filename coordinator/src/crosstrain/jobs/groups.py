"""Groups: runs that span several services of one engine, which meet at the one that leads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from crosstrain.registry import Offer, Registry, choose_replicas
from crosstrain.store import Group, Member, NewMember
from crosstrain_protos.v1 import service_pb2, training_pb2
from crosstrain_service import capabilities
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.servicer import features_of

from .naming import member_run_id
from .requests import Request


def members_for(
    registry: Registry, like: Offer, ranks: Sequence[int], device: tuple[str, int], field: str
) -> list[tuple[Offer, NewMember]]:
    """Services that share a run, with their numbers of ranks; the first leads.

    Args:
        like: the offer that the job's document means.
        ranks: of each service.
        device: kind and index of the (first) device that each uses.

    Raises:
        CrosstrainError: ``UNSUPPORTED`` if the engine cannot, there are too few services, or they do not fit together.
    """
    try:
        capabilities.require(like.label, dict(features_of(like.engine)), {"parallel.hosts"})
    except CrosstrainError as error:
        raise CrosstrainError(error.reason, error.message, field) from error
    kind, index = device
    found = []
    for offer, count in zip(choose_replicas(registry.offers(), like, len(ranks), field), ranks, strict=True):
        names = [item.name for item in offer.devices]
        for number in range(index, index + (count if kind == "cuda" else 1)):
            if f"{kind}:{number}" not in names:
                text = f"the service {offer.service} of {offer.label} has no device {kind}:{number}, only "
                raise CrosstrainError("UNSUPPORTED", f"{field}: {text}{', '.join(names) or 'none'}", field)
        key = registry.device_key(offer, kind, index, count)
        found.append((offer, NewMember(offer.service, offer.host, key, count)))
    return found


def group_message(group: Group, member: Member) -> training_pb2.Group:
    """One member's part of a group. Holds the secret: not to be logged or answered.

    Raises:
        CrosstrainError: ``WRONG_STATE`` if the run has ended and its secret is gone.
    """
    if group.secret is None:
        raise CrosstrainError("WRONG_STATE", f"the run {group.run_id} has ended")
    message = training_pb2.Group(
        group_id=group.run_id,
        member=member.member,
        ranks=[item.ranks for item in group.members],
        secret=group.secret,
        host=member.host,
    )
    if member.member:
        message.leader_host = group.members[0].host
        message.leader_port = group.port
    return message


def request_of_member(request: Request, group: Group, member: Member) -> Request:
    """What a member's service is asked for."""
    assert not isinstance(request, service_pb2.EvaluateRequest)
    mine = copy.deepcopy(request)
    mine.run_id = run_id_of(group, member)
    mine.group.CopyFrom(group_message(group, member))
    return mine


def run_id_of(group: Group, member: Member) -> str:
    """Id of a member's present run; the leader's is that of the job."""
    return member_run_id(group.run_id, member.member, member.start) if member.member else group.run_id
