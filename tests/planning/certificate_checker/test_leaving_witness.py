"""Witnesses of what leaves a group two messages before the end: those that do not hold are found."""

import pytest

from tests.planning.certificate_checker.test_time_witness import made, refused


def test_a_message_between_groups_takes_no_less():
    machine, one = made("leaving")
    refused(machine, one, "5.1 us across, some message takes 5", across_us=5.1)
    refused(machine, one, "time bound is", across_us=4.9)


@pytest.mark.parametrize("case", ["leaving", "leaving of a reduce"])
def test_groups_are_all_hosts(case):
    machine, one = made(case)
    groups = one.certificate.witness["groups"]
    refused(machine, one, "every endpoint with ranks in one of", groups=groups[1:])
    joined = [groups[0], groups[1] + groups[2], *groups[3:]]
    refused(machine, one, "time bound is", groups=joined)


def test_of_a_reduce_the_root_is_in_the_first():
    machine, one = made("leaving of a reduce")
    refused(machine, one, "expected the group of the root first", groups=one.certificate.witness["groups"][::-1])


def test_two_groups_have_no_relay():
    machine, one = made("leaving")
    groups = one.certificate.witness["groups"]
    refused(
        machine, one, "expected several groups", groups=[groups[0], [name for group in groups[1:] for name in group]]
    )


def test_a_broadcast_has_none():
    machine, one = made("relays of a broadcast")
    named = {"kind": "leaving", "groups": one.certificate.witness["groups"]}
    refused(machine, one, "expected a reduce, or an allreduce", **named)
